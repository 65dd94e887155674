"""What a LoRA adapter is: read from strangers, checked against its base, stored by digest. No torch, no database."""
