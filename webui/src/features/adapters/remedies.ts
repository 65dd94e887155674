/** What to do, by the code of a problem. Where the message says it already there is no entry. */
const REMEDIES: Record<string, string> = {
  base_mismatch: "Train it on the base that is served, or have an administrator accept this base's name.",
  base_unconfirmed: "If it was trained on the base that is served, confirm that below and upload it again.",
  changed_base_weights: "Save it again with modules_to_save, or without the embedding layers.",
  check_did_not_end: "Upload it again.",
  damaged: "Upload it again.",
  invalid_adapter_config: "Mend adapter_config.json, or save the adapter again with PEFT's save_pretrained.",
  invalid_safetensors: "The weights file is damaged: save the adapter again with PEFT's save_pretrained.",
  missing_file: "Choose both files that PEFT's save_pretrained wrote, or an archive of them.",
  missing_tensors: "Config and weights are not of one adapter: save both again with save_pretrained.",
  module_too_large: "Leave the module out of modules_to_save.",
  no_modules: "Name modules that this base has in target_modules.",
  non_finite: "The training diverged: take an earlier checkpoint, or train with a lower learning rate.",
  overflow: "The weights are too large: take an earlier checkpoint, or a lower lora_alpha.",
  scaling_out_of_range: "Choose another lora_alpha or r.",
  unexpected_tensors: "Train only what the config names, or name in target_modules what was trained.",
  unsupported_feature: "Train it without this feature.",
  wrong_shape: "Config and weights are not of one adapter or not of this base: check r and rank_pattern.",
};

export const remedyOf = (code: string): string | undefined => REMEDIES[code];
