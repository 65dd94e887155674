/**
 * An upload in chunks, which goes on where it stopped: after a cut connection by itself, after a cancelled dialog or a
 * closed page when the same files are chosen again.
 */
import { api, unwrap } from "./client";
import { ApiError, UnreachableError } from "./errors";
import { send } from "./send";
import type { AcceptedUpload, Upload } from "./types";

const CHUNK_BYTES = 8 * 2 ** 20;
const MAX_TRIES = 6;
const FIRST_PAUSE_MS = 500;
/** The other side has to catch up, or is told where it stands by the next look. */
const PASSING = new Set(["busy", "wrong_offset"]);

export interface NewUpload {
  tenantId: string;
  name: string;
  /** A zip or tar, or adapter_config.json with adapter_model.safetensors. */
  files: readonly File[];
  confirmBase: boolean;
  promote: boolean;
}

interface Progress {
  /** Called with the share that was sent, 0 to 1. */
  onProgress: (share: number) => void;
  signal: AbortSignal;
}

/** Throws ApiError or UnreachableError, and the signal's reason when it is aborted. */
export async function uploadResumably(upload: NewUpload, { onProgress, signal }: Progress): Promise<AcceptedUpload> {
  const bytes = new Blob([...upload.files]);
  const memory = rememberedAs(upload);
  let state = (await remembered(upload, signal)) ?? (await create(upload, signal));
  localStorage.setItem(memory, state.id);
  const path = { tenant_id: upload.tenantId, upload_id: state.id };

  const look = async () =>
    unwrap(api.GET("/api/v1/tenants/{tenant_id}/uploads/{upload_id}", { params: { path }, signal }));
  try {
    while (state.offset < state.size) {
      const { offset, size, max_chunk_bytes: most } = state;
      state = await patiently(
        () =>
          send({
            method: "PATCH",
            url: `/api/v1/tenants/${upload.tenantId}/uploads/${state.id}`,
            headers: { "Upload-Offset": String(state.offset), "Content-Type": "application/octet-stream" },
            body: bytes.slice(state.offset, state.offset + Math.min(most, CHUNK_BYTES)),
            onSent: (sent) => onProgress(Math.min(1, (offset + sent) / size)),
            signal,
          }) as Promise<Upload>,
        async () => {
          state = await look();
        },
        signal,
      );
      onProgress(state.offset / size);
    }
    const accepted = await patiently(
      () => unwrap(api.POST("/api/v1/tenants/{tenant_id}/uploads/{upload_id}/finish", { params: { path }, signal })),
      look,
      signal,
    );
    localStorage.removeItem(memory);
    return accepted;
  } catch (error) {
    if (error instanceof ApiError) localStorage.removeItem(memory); // refused: the next one begins anew
    throw error;
  }
}

async function create({ tenantId, name, files, confirmBase, promote }: NewUpload, signal: AbortSignal): Promise<Upload> {
  return unwrap(
    api.POST("/api/v1/tenants/{tenant_id}/uploads", {
      params: { path: { tenant_id: tenantId } },
      body: {
        name,
        base_model: null,
        confirm_base: confirmBase,
        promote,
        files: files.map((file) => ({ filename: file.name, size: file.size, sha256: null })),
      },
      signal,
    }),
  );
}

/** The upload of these very files that was begun and not ended, if the platform still has it. */
async function remembered(upload: NewUpload, signal: AbortSignal): Promise<Upload | null> {
  const id = localStorage.getItem(rememberedAs(upload));
  if (id === null) return null;
  try {
    const path = { tenant_id: upload.tenantId, upload_id: id };
    const state = await unwrap(
      api.GET("/api/v1/tenants/{tenant_id}/uploads/{upload_id}", { params: { path }, signal }),
    );
    return state.status === "refused" ? null : state;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

function rememberedAs({ tenantId, name, files, confirmBase, promote }: NewUpload): string {
  const what = files.map((file) => [file.name, file.size, file.lastModified]);
  return `tenora.upload.${JSON.stringify([tenantId, name, confirmBase, promote, what])}`;
}

/** Calls again, after a pause and `before`, while there is no answer or a passing one. */
export async function patiently<Result>(
  call: () => Promise<Result>,
  before: () => Promise<unknown>,
  signal: AbortSignal,
  pauseMs = FIRST_PAUSE_MS,
): Promise<Result> {
  for (let tries = 1; ; tries++) {
    try {
      if (tries > 1) await before();
      return await call();
    } catch (error) {
      const isPassing = error instanceof UnreachableError || (error instanceof ApiError && PASSING.has(error.code));
      if (!isPassing || tries === MAX_TRIES || signal.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, pauseMs * 2 ** (tries - 1)));
      signal.throwIfAborted();
    }
  }
}
