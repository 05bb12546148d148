"""Mapping rules: names, rules and results of Kafka's ``SslPrincipalMapperTest``, and what is refused."""

from __future__ import annotations

import pytest

from seglog.broker.security.principal_mapping import mapped, parse_rules

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (RULES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (RULES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (RULES, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (RULES, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("DEFAULT", "CN=Duke", "CN=Duke"),
        ("", "CN=Duke", "CN=Duke"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/\/abc\/$1/L", "CN=Duke,OU=ServiceUsers", "/abc/duke"),
        ("RULE:^CN=(.*?)$/$1$2/", "CN=Duke", "Duke$2"),
        ("RULE:a/b/,DEFAULT", "aaa", "aaa"),  # a pattern that matches a part of the name only
        ("RULE:(a|x)*/b/", "axa", "b" * 2),  # and one that then also matches the end, as in Java
        ("RULE:CN=(?<who>.*)/$1/", "CN=Duke", "Duke"),
        ("RULE:^CN=(.*)$/$1/", "OU=x", None),
    ],
)
def test_the_first_rule_that_matches_counts(rules: str, name: str, principal: str | None) -> None:
    assert mapped(parse_rules(rules), name) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/g",
        "rule:^CN=(.*?)$/$1/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?)$/$1/LU",
        "RULE:(/$1/L",
    ],
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule|pattern"):
        parse_rules(rules)
