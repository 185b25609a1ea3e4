// Package nvml reads NVIDIA GPUs through their management library.
//
// It owns the session with the driver, the memory of what each GPU last said,
// and the translation of NVML's values into ours; no nvml.Return leaves it. It
// changes nothing of a GPU but its compute mode, when asked. It never waits for
// a GPU that hangs longer than its time, nor for one because of another. A
// missing library or driver is a state: the next read tries again, since the
// driver may come after the daemon.
package nvml

import (
	"errors"

	"github.com/heddle-dev/heddle/api/machine"
)

// Library is what the reader asks of NVML. System returns the real one. Calls
// may block for ever; the reader never makes a second call on a GPU before the
// first has returned.
type Library interface {
	// Open initializes NVML unless it is, and tells the driver and how many
	// GPUs there are. ErrAbsent if there is no library or no driver.
	Open() (machine.Driver, int, error)
	// GPU reads the GPU at an index. ErrLost, with whatever identity could
	// be read, if it no longer answers.
	GPU(index int) (machine.GPU, error)
	// Close ends the session, so that the next Open sees GPUs that came or
	// went, or a driver that was loaded anew. It unmaps the library, and so
	// is never called while a call has not returned; calls that the caller
	// does not know of, of EventLibrary and the like, it waits for, and
	// keeps the session with an error if they take too long.
	Close() error
}

// SystemLibrary is all that NVML is asked.
type SystemLibrary interface {
	Library
	EventLibrary
	CardLibrary
}

// CardLibrary is what is asked of, and done to, single GPUs. Like events it uses
// the session that a Reader opened, and the GPUs that it read.
type CardLibrary interface {
	PulseLibrary
	ModeLibrary
	UsageLibrary
}

// ErrAbsent means that there is nothing to ask: no library, no driver, or a
// build without cgo. The text around it says which.
var ErrAbsent = errors.New("absent")

// ErrLost means that a GPU is there and no longer answers
// (NVML_ERROR_GPU_IS_LOST).
var ErrLost = errors.New("lost")
