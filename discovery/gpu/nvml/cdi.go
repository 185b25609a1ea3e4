package nvml

import (
	"log/slog"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// CDI makes CDI devices of the machine's own GPUs, with NVIDIA's library for
// that (nvidia-container-toolkit, pkg/nvcdi): it knows which libraries,
// sockets and nodes each driver has. It asks NVML on a session of its own.
type CDI struct {
	// DriverRoot is where this process sees the driver's installation, HostDriverRoot
	// where the container runtime sees it; both default to /. So with DevRoot
	// and HostDevRoot, whose defaults are the driver's: dev is below them.
	DriverRoot, HostDriverRoot string
	DevRoot, HostDevRoot       string
	// Hook is nvidia-cdi-hook on the host: it refreshes a container's linker
	// cache and links libraries. Empty leaves all hooks out; images must then
	// find the libraries by LD_LIBRARY_PATH.
	Hook     string
	Features gpu.Features
	// Log gets the library's messages, at debug level; nil discards.
	Log *slog.Logger
}

// The names of devices for [gpu.Features].
const (
	gdrcopyDevice = "gdrcopy"
	gdsDevice     = "gds"
	imexDevice    = "imex-channel-"
)
