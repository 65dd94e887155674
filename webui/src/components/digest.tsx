/** The head of a SHA-256, whole on hover. */
export function Digest({ value }: { value: string }) {
  return (
    <code title={value} className="font-mono text-xs">
      {value.slice(0, 12)}
    </code>
  );
}
