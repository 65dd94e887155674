const NUM_COLORS = 8;

/** The colour of the n-th model, in the chart and beside its totals. */
export const seriesColor = (index: number): string => `var(--series-${(index % NUM_COLORS) + 1})`;
