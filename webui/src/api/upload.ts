/** A multipart POST that says how far it is: `fetch` cannot tell the progress of a request's body. */
import { REQUEST_HEADER } from "./client";
import { errorOf, UnreachableError } from "./errors";

interface Upload {
  url: string;
  form: FormData;
  /** Called with the share that was sent, 0 to 1. */
  onProgress: (share: number) => void;
  signal: AbortSignal;
}

/** The answer's JSON. Throws ApiError or UnreachableError, and the signal's reason when it is aborted. */
export function upload({ url, form, onProgress, signal }: Upload): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    request.setRequestHeader(REQUEST_HEADER, "1");
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress(event.loaded / event.total);
    });
    request.addEventListener("load", () => {
      const body = parse(request.responseText);
      if (request.status >= 200 && request.status < 300) resolve(body);
      else reject(errorOf(request.status, body));
    });
    request.addEventListener("error", () => reject(new UnreachableError()));
    request.addEventListener("abort", () => reject(signal.reason as Error));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
