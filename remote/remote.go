// Package remote will hold the contract with hosts that have the GPUs that this machine lacks: submit, wait, collect,
// release. The providers (SSH, Slurm, AWS, Modal) are packages below it. It is not built yet.
package remote
