/** A tenant's limits; null is unlimited, 0 blocks everything. */
export interface Limits {
  requests_per_minute: number | null;
  tokens_per_minute: number | null;
}

export type LimitName = keyof Limits;

/** What a person chose for one limit, before it is known to be a number. */
export interface LimitChoice {
  isUnlimited: boolean;
  text: string;
}

export const choiceOf = (limit: number | null): LimitChoice => ({
  isUnlimited: limit === null,
  text: limit === null ? "" : String(limit),
});

/** The limit that a choice stands for, or undefined when it is none yet. */
export function limitOf({ isUnlimited, text }: LimitChoice): number | null | undefined {
  if (isUnlimited) return null;
  const digits = text.replaceAll(/[\s,_]/g, "");
  if (!/^\d{1,13}$/.test(digits)) return undefined;
  return Number(digits);
}
