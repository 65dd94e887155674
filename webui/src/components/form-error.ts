import { ApiError } from "@/api/errors";

interface FormError<Field extends string> {
  /** By the field's name: what the API says of it. */
  fields: Partial<Record<Field, string>>;
  /** What no field of the form is to blame for. */
  rest: Error | null;
}

/** Where a refusal is shown: beside the field that the API names when the form has it, else above the buttons. */
export function formError<Field extends string>(error: Error | null, names: readonly Field[]): FormError<Field> {
  const name = error instanceof ApiError ? names.find((candidate) => candidate === error.param) : undefined;
  if (error === null || name === undefined) return { fields: {}, rest: error };
  const prefix = `${name}: `; // beside the field its name need not be said again
  const message = error.message.startsWith(prefix) ? error.message.slice(prefix.length) : error.message;
  const fields: FormError<Field>["fields"] = {};
  fields[name] = message;
  return { fields, rest: null };
}
