// The API of this console; an error is one sentence.

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answer(response) {
  let document_ = null;
  try {
    document_ = await response.json();
  } catch {
    // a proxy's page, or nothing
  }
  if (!response.ok) throw new ApiError(response.status, document_?.error ?? `${response.status} ${response.statusText}`);
  return document_;
}

export async function get(path, values = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  return answer(await fetch(`/api/${path}${query.size ? `?${query}` : ""}`, { signal }));
}

export async function post(path, values) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values) };
  return answer(await fetch(`/api/${path}`, options));
}
