/** The control API, typed by its OpenAPI description. */
import createClient, { type FetchResponse, type Middleware } from "openapi-fetch";

import { errorOf, UnreachableError } from "./errors";
import type { paths } from "./schema.gen";

/** The API takes a changing call only with this header: another site's form cannot set it. */
export const REQUEST_HEADER = "X-Tenora-Request";

const markAsOurs: Middleware = {
  onRequest: ({ request }) => {
    if (request.method !== "GET") request.headers.set(REQUEST_HEADER, "1");
    return request;
  },
  onError: ({ error }) => {
    // An abort is the caller's own doing; everything else that fetch throws means "no answer".
    if (error instanceof DOMException && error.name === "AbortError") return error;
    return new UnreachableError();
  },
};

export const api = createClient<paths>({ baseUrl: window.location.origin });
api.use(markAsOurs);

type Media = `${string}/${string}`;

/** The answer's body. Throws ApiError or UnreachableError. */
export async function unwrap<Operation extends Record<string | number, unknown>, Options>(
  call: Promise<FetchResponse<Operation, Options, Media>>,
): Promise<NonNullable<FetchResponse<Operation, Options, Media>["data"]>> {
  const { data, error, response } = await call;
  if (!response.ok) throw errorOf(response.status, error);
  return data as NonNullable<typeof data>;
}
