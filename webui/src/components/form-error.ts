import { ApiError } from "@/api/errors";

/**
 * Where a failed save is shown: beside the field that the API names when the form has it, else above the buttons.
 */
export function formError<Field extends string>(
  error: Error | null,
  fields: readonly Field[],
): { field: Partial<Record<Field, string>>; rest: Error | null } {
  if (error instanceof ApiError) {
    const field = fields.find((name) => name === error.param);
    if (field) return { field: { [field]: error.message } as Partial<Record<Field, string>>, rest: null };
  }
  return { field: {}, rest: error };
}
