import type { ValidationReport } from "@/api/types";

export interface Fact {
  name: string;
  value: string;
}

/** The report's plain entries as words. What is nested is for programs, and stays in the API. */
export function factsOf(report: ValidationReport): Fact[] {
  return Object.entries(report).flatMap(([key, value]) => {
    const text = key === "accepted" ? null : plain(value); // the version's status says that already
    return text === null ? [] : [{ name: key.replaceAll("_", " "), value: text }];
  });
}

function plain(value: unknown): string | null {
  if (typeof value === "string" && value !== "") return value;
  if (typeof value === "number") return new Intl.NumberFormat("en", { maximumSignificantDigits: 6 }).format(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === "string" || typeof item === "number")) {
    return value.join(", ");
  }
  return null;
}
