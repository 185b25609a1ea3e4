package gpu

import (
	"cmp"
	"slices"
)

// Process is a process with a context on a GPU.
type Process struct {
	// PID is of the PID namespace that the driver counts in: the host's, where
	// this process is in it.
	PID int
	// Bytes of the GPU's memory; -1 if the driver does not report them.
	Bytes int64
}

// Sample is how busy a process kept a GPU.
type Sample struct {
	PID int
	// At is the driver's time, in microseconds.
	At uint64
	// SM is the percentage of the time in which a kernel of it ran; -1 for
	// what is not a percentage.
	SM int
}

// Usage is who uses a GPU.
type Usage struct {
	// GPU is the UUID.
	GPU string
	// Err is why nothing is known: [ErrLost], [ErrSilent] or the driver's error.
	Err       error
	Processes []Process
	// Samples are since the last reading, one for each process that did
	// something, sorted by PID. SamplesErr is why there are none.
	Samples    []Sample
	SamplesErr error
}

// newest is each process's last sample, by PID.
func newest(samples []Sample) []Sample {
	// The newest first, which Compact keeps.
	slices.SortStableFunc(samples, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(b.At, a.At))
	})
	return slices.CompactFunc(samples, func(a, b Sample) bool { return a.PID == b.PID })
}
