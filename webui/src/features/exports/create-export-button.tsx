import { Button } from "@heroui/react";
import { today } from "@internationalized/date";
import { useState } from "react";

import { SelectInput } from "@/components/fields";
import { FormDialog } from "@/components/form-dialog";
import { PlusIcon } from "@/components/icons";

import { useCreateExport } from "./api/create-export";
import { recentMonths } from "./months";

const NUM_MONTHS = 24;

export function CreateExportButton({ tenantId, timeZone }: { tenantId: string; timeZone: string }) {
  const months = recentMonths(today(timeZone), NUM_MONTHS);
  const [isOpen, setOpen] = useState(false);
  const [period, setPeriod] = useState(months[0]?.value ?? "");
  const create = useCreateExport(tenantId);

  return (
    <>
      <Button
        size="sm"
        onPress={() => {
          create.reset();
          setOpen(true);
        }}
      >
        <PlusIcon /> New export
      </Button>
      {isOpen && (
        <FormDialog
          title="New billing export"
          submitLabel="Create export"
          isOpen
          onClose={() => setOpen(false)}
          onSubmit={() => create.mutate(period, { onSuccess: () => setOpen(false) })}
          isPending={create.isPending}
          error={create.error}
        >
          <SelectInput
            label="Month"
            value={period}
            onChange={setPeriod}
            options={months}
          />
          <p className="text-muted">
            The month runs from midnight to midnight in {timeZone}. What arrives after an export of a month was made goes
            into its next revision.
          </p>
        </FormDialog>
      )}
    </>
  );
}
