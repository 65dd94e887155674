import { Label, Slider } from "@heroui/react";
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";

import { FormDialog } from "@/components/form-dialog";

interface CanaryDialogProps {
  number: number;
  /** Its share of the requests now, in 100; 0 when it is no canary yet. */
  share: number;
  onSet: (percent: number) => Promise<unknown>;
  onClose: () => void;
}

const FIRST_SHARE = 10;

export function CanaryDialog({ number, share, onSet, onClose }: CanaryDialogProps) {
  const [percent, setPercent] = useState(share || FIRST_SHARE);
  const set = useMutation({ mutationFn: onSet, onSuccess: onClose });
  return (
    <FormDialog
      title={share ? `Share of version ${number}` : `Try version ${number} on a share of the requests`}
      submitLabel={share ? "Change share" : "Start canary"}
      isOpen
      onClose={onClose}
      onSubmit={() => set.mutate(percent)}
      isPending={set.isPending}
      error={set.error}
    >
      <Slider minValue={1} maxValue={99} value={percent} onChange={(value) => setPercent(Number(value))}>
        <Label>Requests to version {number}, in 100</Label>
        <Slider.Output />
        <Slider.Track>
          <Slider.Fill />
          <Slider.Thumb />
        </Slider.Track>
      </Slider>
      <p className="text-xs text-muted">
        The rest stays with the version that serves now. A user, or a key that names none, always gets the same one.
      </p>
    </FormDialog>
  );
}
