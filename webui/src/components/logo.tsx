export function Logo({ className = "size-6" }: { className?: string }) {
  return <img src="/favicon.svg" alt="" className={className} />;
}
