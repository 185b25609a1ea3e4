package enforce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// The plugin and a [Keeper] share a directory on the node: the plugin writes the wanted daemons,
// the Keeper their states. Both files are replaced as a whole. The Keeper is
// updated later than the plugin (OnDelete), so a file with other fields needs another name.
const (
	wantedFile = "daemons-v1.json"
	statusFile = "status-v1.json"
	// aliveDir is locked while a Keeper's status is valid.
	aliveDir = "alive"
)

// wantedDaemons lists the daemons to run. Generation grows with each change, so that a status names
// the generation that it answers.
type wantedDaemons struct {
	Generation int64          `json:"generation"`
	GPUs       []wantedDaemon `json:"gpus"`
}

type wantedDaemon struct {
	GPU   string `json:"gpu"`
	Index int    `json:"index"`
	// MultiUser is for the daemon's next start.
	MultiUser bool `json:"multiUser"`
	daemonLimits
}

// daemonLimits are the limits of one GPU's daemon. They hold for every client
// that requests more or nothing, and so are the largest that a client was granted.
type daemonLimits struct {
	Percent int `json:"percent"`
	// MemoryMiB of 0 sets none.
	MemoryMiB int64 `json:"memoryMiB"`
}

// daemonStatus is the state of all daemons once the Keeper has acted on Generation.
type daemonStatus struct {
	Generation int64 `json:"generation"`
	// Error is the reason why the plugin's file is not used.
	Error   string   `json:"error,omitempty"`
	Daemons []Daemon `json:"daemons"`
}

func (s *daemonStatus) daemon(uuid string) *Daemon {
	for i := range s.Daemons {
		if s.Daemons[i].GPU == uuid {
			return &s.Daemons[i]
		}
	}
	return nil
}

// State is the state of a GPU's control daemon.
type State string

// The states of a daemon.
const (
	// Starting: a client that starts now would not be limited, so none is started.
	Starting State = "starting"
	// Running: it answers, and has the limits.
	Running State = "running"
	// Broken: it died, hangs or does not start, and will be started again.
	Broken State = "broken"
	// Stopped: the GPU has no consumers, and the daemon is being ended.
	Stopped State = "stopped"
)

// Daemon is the MPS daemon of a GPU.
type Daemon struct {
	// GPU is the UUID, Index the driver's number.
	GPU   string `json:"gpu"`
	Index int    `json:"index"`
	// Since is the time when the daemon entered State. Reason is the current fault, or empty: why
	// the daemon is Broken, or was before it was restarted, or which limits it rejects.
	State  State     `json:"state"`
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Restarts counts the restarts of the daemon. LastError is the reason of the last restart; it
	// stays once the daemon runs again. LastRunning is the time when it last ran, zero if it never
	// did.
	Restarts    int       `json:"restarts"`
	LastError   string    `json:"lastError,omitempty"`
	LastRunning time.Time `json:"lastRunning,omitzero"`
	// Percent and MemoryMiB are the limits of a process that unsets its
	// environment; 0 MiB means no limit.
	Percent   int   `json:"percent"`
	MemoryMiB int64 `json:"memoryMiB"`
	Consumers int   `json:"consumers"`
	// MultiUser: clients of all users share the daemon's server.
	MultiUser bool `json:"multiUser,omitempty"`
}

func (d *Daemon) limits() daemonLimits { return daemonLimits{d.Percent, d.MemoryMiB} }

// readWanted reads the plugin's file; a missing one wants nothing.
func readWanted(dir string) (wantedDaemons, error) {
	var w wantedDaemons
	err := readShared(dir, wantedFile, &w)
	if err == nil {
		err = w.check()
	}
	if err != nil {
		return wantedDaemons{}, fmt.Errorf("%s: %w", wantedFile, err)
	}
	return w, nil
}

// check rejects values that are not names of directories or arguments of commands.
func (w *wantedDaemons) check() error {
	seen := map[string]bool{}
	for i := range w.GPUs {
		switch d := &w.GPUs[i]; {
		case !fileName(d.GPU):
			return fmt.Errorf("invalid GPU %q", d.GPU)
		case seen[d.GPU]:
			return fmt.Errorf("duplicate GPU %s", d.GPU)
		case d.Percent < 1 || d.Percent > 100:
			return fmt.Errorf("GPU %s: invalid percent %d", d.GPU, d.Percent)
		case d.MemoryMiB < 0 || d.MemoryMiB > allocation.MaxMemoryMiB:
			return fmt.Errorf("GPU %s: invalid memoryMiB %d", d.GPU, d.MemoryMiB)
		}
		seen[w.GPUs[i].GPU] = true
	}
	return nil
}

func writeShared(dir, name string, from any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return hostfile.Write(filepath.Join(dir, name), text, 0o600, hostfile.Quick)
}

// readShared reads a file; a missing one leaves into as it is.
func readShared(dir, name string, into any) error {
	text, err := hostfile.Read(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
