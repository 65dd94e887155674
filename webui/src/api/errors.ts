/**
 * What a call to the control API can end in, other than an answer:
 *
 *     ApiError            the API refused, or failed: `status`, `code`, `message` and `param` are its own words
 *     UnreachableError    there was no answer at all
 */
import type { ValidationReport } from "./types";

export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly status: number;
  readonly code: string;
  /** The field that the error is about. */
  readonly param: string | null;
  /** What was found in a refused upload. */
  readonly report: ValidationReport | null;

  constructor(status: number, code: string, message: string, param: string | null, report: ValidationReport | null) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.report = report;
  }
}

export class UnreachableError extends Error {
  override readonly name = "UnreachableError";

  constructor() {
    super("The platform cannot be reached. Check that it is up and try again.");
  }
}

interface ErrorBody {
  error: { code: string; message: string; param?: string | null; report?: ValidationReport | null };
}

function isErrorBody(body: unknown): body is ErrorBody {
  if (typeof body !== "object" || body === null || !("error" in body)) return false;
  const { error } = body;
  return (
    typeof error === "object" &&
    error !== null &&
    "message" in error &&
    typeof error.message === "string" &&
    "code" in error &&
    typeof error.code === "string"
  );
}

/** The error that an answer with a failing status stands for; a proxy's page in the API's place is one too. */
export function errorOf(status: number, body: unknown): ApiError {
  if (!isErrorBody(body)) {
    return new ApiError(status, "unexpected_answer", `The platform answered ${status} without saying why.`, null, null);
  }
  const { code, message, param, report } = body.error;
  return new ApiError(status, code, message, param ?? null, report ?? null);
}

export const isSignedOut = (error: unknown): boolean => error instanceof ApiError && error.status === 401;
