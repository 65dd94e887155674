/** A request that says how far its body is: `fetch` cannot tell. */
import { REQUEST_HEADER } from "./client";
import { errorOf, UnreachableError } from "./errors";

interface Sending {
  method: "POST" | "PATCH";
  url: string;
  headers: Record<string, string>;
  body: Blob;
  /** Called with the bytes that were sent. */
  onSent: (bytes: number) => void;
  signal: AbortSignal;
}

/** The answer's JSON. Throws ApiError or UnreachableError, and the signal's reason when it is aborted. */
export function send({ method, url, headers, body, onSent, signal }: Sending): Promise<unknown> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const request = new XMLHttpRequest();
    request.open(method, url);
    request.setRequestHeader(REQUEST_HEADER, "1");
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => onSent(event.loaded));
    request.addEventListener("load", () => {
      const answer = parse(request.responseText);
      if (request.status >= 200 && request.status < 300) resolve(answer);
      else reject(errorOf(request.status, answer));
    });
    request.addEventListener("error", () => reject(new UnreachableError()));
    request.addEventListener("abort", () => reject(signal.reason as Error));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(body);
  });
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
