package enforce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// The plugin and a [Keeper] share a directory on the node: the plugin writes the wanted daemons,
// the Keeper their states. Both files are replaced as a whole and decoded strictly. The Keeper is
// updated later than the plugin (OnDelete), so a file with other fields needs another name.
const (
	wantedFile = "daemons-v1.json"
	statusFile = "status-v1.json"
	// aliveDir is locked while a Keeper's status is valid.
	aliveDir = "alive"
	// maxFile bounds a file, in bytes, and maxDaemons the GPUs in it.
	maxFile    = 1 << 18
	maxDaemons = 256
	// maxMemoryMiB is 16 TiB.
	maxMemoryMiB = 16 << 20
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

func (d *Daemon) limits() daemonLimits { return daemonLimits{d.Percent, d.MemoryMiB} }

func writeWanted(dir string, w *wantedDaemons) error {
	return writeShared(filepath.Join(dir, wantedFile), w)
}

// readWanted reads the plugin's file; a missing one wants nothing.
func readWanted(dir string, w *wantedDaemons) error {
	path := filepath.Join(dir, wantedFile)
	if err := readShared(path, w); err != nil {
		*w = wantedDaemons{}
		return err
	}
	if err := w.check(); err != nil {
		*w = wantedDaemons{}
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// check rejects values that are not names of directories or arguments of commands.
func (w *wantedDaemons) check() error {
	if len(w.GPUs) > maxDaemons {
		return fmt.Errorf("%d GPUs, at most %d", len(w.GPUs), maxDaemons)
	}
	seen := map[string]bool{}
	for i := range w.GPUs {
		switch d := &w.GPUs[i]; {
		case !fileName(d.GPU):
			return fmt.Errorf("invalid GPU %q", d.GPU)
		case seen[d.GPU]:
			return fmt.Errorf("duplicate GPU %s", d.GPU)
		case d.Percent < 1 || d.Percent > 100:
			return fmt.Errorf("GPU %s: invalid percent %d", d.GPU, d.Percent)
		case d.MemoryMiB < 0 || d.MemoryMiB > maxMemoryMiB:
			return fmt.Errorf("GPU %s: invalid memoryMiB %d", d.GPU, d.MemoryMiB)
		}
		seen[w.GPUs[i].GPU] = true
	}
	return nil
}

func writeStatus(dir string, s *daemonStatus) error {
	return writeShared(filepath.Join(dir, statusFile), s)
}

func readStatus(dir string) (daemonStatus, error) {
	var s daemonStatus
	err := readShared(filepath.Join(dir, statusFile), &s)
	if err != nil {
		return daemonStatus{}, err
	}
	return s, nil
}

// keeperAlive reports whether a Keeper runs and has written its status.
func keeperAlive(dir string) bool { return hostfile.Locked(filepath.Join(dir, aliveDir)) }

func writeShared(path string, from any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return hostfile.Write(path, text, 0o600, hostfile.Quick)
}

// readShared decodes one JSON object and rejects everything else; a missing file
// leaves into as it is.
func readShared(path string, into any) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // It was only read.
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(text) > maxFile {
		return fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	if rest := text[d.InputOffset():]; slices.ContainsFunc(rest, func(b byte) bool { return b != '\n' }) {
		return fmt.Errorf("decode %s: data after the object", path)
	}
	return nil
}
