package gpu

import (
	"time"

	"github.com/heddle-dev/heddle/discovery/bounded"
)

// All times that bound calls to a GPU driver.
const (
	// ScanTimeout bounds one scan of a vendor's GPUs, unless a [Reader] has another.
	ScanTimeout = bounded.DefaultTimeout
	// PollTimeout bounds one poll of all GPUs.
	PollTimeout      = 2 * time.Second
	OccupancyTimeout = time.Second // OccupancyTimeout bounds one call of [Occupied] for all GPUs of a container.
	// EventWait bounds one wait for an event, so that a session can be ended. An event ends the wait at once.
	// Every wait that ends wakes the process up.
	EventWait = 4 * time.Second
	// CloseTimeout bounds the end of a session, which waits for calls in it: a wait for an event returns after
	// EventWait, a poll in milliseconds. It is less than ScanTimeout.
	CloseTimeout = 2 * EventWait
	// EventRearm is the time after which an event set that lacks a GPU is made again: the GPU may have been reset.
	EventRearm = 30 * time.Second
	// firstBackoff is the pause after a failed wait for an event. It doubles up to lastBackoff.
	firstBackoff = time.Second
	lastBackoff  = 30 * time.Second

	// DriverPatience is how long a process waits for a driver that the kernel has and the process cannot reach,
	// until it ends: a container gets files and rights of the driver when it is created, or never.
	DriverPatience = time.Minute
	// LongDriverPatience is DriverPatience for a container that was created beside the driver and never reached
	// it: most likely no runtime brings the driver, and the daemon has other work. The kubelet resets its back-off
	// for a container that ran for ten minutes.
	LongDriverPatience = 11 * time.Minute

	// ToolTimeout bounds one call of a vendor's tool, and ToolsTimeout all calls of a scan, where the kernel keeps
	// a call from being killed.
	ToolTimeout  = 3 * time.Second
	ToolsTimeout = ToolTimeout + time.Second
)
