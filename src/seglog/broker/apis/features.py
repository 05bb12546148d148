"""UpdateFeatures: the finalized levels of the cluster's features (KIP-584, ``QuorumController.updateFeatures``).
Clients read them from ApiVersions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from seglog.broker.identity import Identity
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.store_writes import read
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.features import FEATURES, FeatureUpdate, FeatureUpdateError, UpgradeType, update_features
from seglog.cluster.store import MetadataStore
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_RESULT_FOR_EACH: Final = 1
"""The last version with a result for each feature."""


class FeatureApis:
    """Every broker may change the levels: the store decides between two that do."""

    def __init__(self, store: MetadataStore, view: ClusterView, identity: Identity) -> None:
        self._store = store
        self._view = view
        self._identity = identity

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {ApiKey.UPDATE_FEATURES: self.update_features}

    async def update_features(self, request: Message, context: RequestContext) -> Answer:
        """All updates are made, or none."""
        updates = {
            one.feature: FeatureUpdate(one.max_version_level, getattr(one, "upgrade_type", UpgradeType.UPGRADE))
            for one in request.feature_updates
        }
        changing = update_features(
            self._store,
            updates,
            self._identity.node_id,
            validate_only=getattr(request, "validate_only", False),
        )
        try:
            written = await read(changing)
        except FeatureUpdateError as error:
            return _failed(
                error.code, f"The update failed for all features since the following feature had an error: {error}"
            )
        except SeglogError as error:
            return _failed(error.code, str(error))
        if written is not None:
            self._view.note(FEATURES, *written)
        results = updates if context.version <= _RESULT_FOR_EACH else ()
        return {
            "error_code": 0,
            "error_message": None,
            "results": [{"feature": name, "error_code": 0, "error_message": "NONE"} for name in results],
        }


def _failed(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message, "results": []}
