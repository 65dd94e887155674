/** The few pictograms that the UI uses, drawn on a 16-unit grid in the text's colour. Decoration only: hidden from readers. */
import type { ReactNode } from "react";

function icon(drawing: ReactNode) {
  return function Icon({ className = "size-4" }: { className?: string }) {
    return (
      <svg
        aria-hidden
        viewBox="0 0 16 16"
        className={`shrink-0 ${className}`}
        fill="none"
        stroke="currentColor"
        strokeWidth="1.4"
        strokeLinecap="round"
        strokeLinejoin="round"
      >
        {drawing}
      </svg>
    );
  };
}

export const CopyIcon = icon(<path d="M5.5 5.5h7v8h-7zM3.5 10.5v-8h7" />);
export const CheckIcon = icon(<path d="m3 8.5 3.2 3.2L13 4.8" />);
export const PlusIcon = icon(<path d="M8 3v10M3 8h10" />);
export const DownloadIcon = icon(<path d="M8 2.5v7.5M4.8 7 8 10.2 11.2 7M3 13.3h10" />);
export const UploadIcon = icon(<path d="M8 10.2V2.7M4.8 5.7 8 2.5l3.2 3.2M3 13.3h10" />);
export const TenantsIcon = icon(<path d="M2.5 13.5v-7l4-4 4 4v7zM10.5 8h3v5.5h-3M5.5 13.5v-3h2v3" />);
export const EngineIcon = icon(<path d="M4 4h8v8H4zM6.5 6.5h3v3h-3zM6 4V2M10 4V2M6 14v-2M10 14v-2M4 6H2M4 10H2M14 6h-2M14 10h-2" />);
export const AuditIcon = icon(<path d="M3.5 2.5h9v11h-9zM6 5.5h4M6 8h4M6 10.5h2.5" />);
export const WarningIcon = icon(<path d="M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1" />);
export const ErrorIcon = icon(<path d="M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2M8 5v3.6M8 10.8v.1" />);
