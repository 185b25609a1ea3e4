package nvml

// ModeLibrary sets a GPU's compute mode, the only thing of a GPU that this
// package changes, and only when asked. [System]'s library does.
type ModeLibrary interface {
	// ExclusiveProcess lets one process at a time have contexts on the GPU
	// (NVML_COMPUTEMODE_EXCLUSIVE_PROCESS), or any number (DEFAULT). It uses
	// the session that a Reader opened, needs root, and may block for ever.
	ExclusiveProcess(uuid string, on bool) error
}
