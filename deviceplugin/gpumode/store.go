package gpumode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

const (
	modesFile = "card-modes.json" // in the state directory
	version   = 1
	// maxGPUs bounds the GPUs in the file: those that a node has ever had.
	maxGPUs = 1024
)

// record is the file: the modes of GPUs, and those that are cordoned.
type record struct {
	Version  int                    `json:"version"`
	Modes    map[string]config.Mode `json:"modes"`
	Cordoned []string               `json:"cordoned,omitempty"`
}

// decode reads the file. The UUIDs and modes in it are valid.
func decode(b []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if r.Version != version {
		return nil, fmt.Errorf("unknown version %d", r.Version)
	}
	for _, uuid := range slices.AppendSeq(slices.Clone(r.Cordoned), maps.Keys(r.Modes)) {
		if !wellknown.IsGPUUUID(uuid) {
			return nil, fmt.Errorf("invalid GPU %.100q", uuid)
		}
	}
	for uuid, mode := range r.Modes {
		if mode != config.ModeNative && mode != config.ModeSGPU {
			return nil, fmt.Errorf("invalid mode %.32q of GPU %s", mode, uuid)
		}
	}
	return r, nil
}

// load reads the file; an empty record without a file, or with an error.
func load(dir string) (*record, error) {
	path := filepath.Join(dir, modesFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &record{}, nil
	}
	if err == nil {
		var r *record
		if r, err = decode(b); err == nil {
			return r, nil
		}
	}
	return &record{}, fmt.Errorf(
		"%s: %w; modes are taken from the holders of the GPUs, and cordons from the Node", path, err)
}

// save writes the file, with the next modes of GPUs that move. Hold mu. Should a loss of power bring the old
// file back, its modes are compared with the holders.
func (t *Tracker) save(moving map[string]config.Mode) error {
	r := record{Version: version, Modes: map[string]config.Mode{}, Cordoned: slices.Sorted(maps.Keys(t.cordoned))}
	// A GPU that was reset comes back: the file keeps lost ones as long as it has room.
	for _, uuid := range slices.Concat(t.present, slices.Sorted(maps.Keys(t.gpus))) {
		mode := t.gpus[uuid].mode
		if next, moves := moving[uuid]; moves {
			mode = next
		}
		if mode != "" && len(r.Modes) < maxGPUs && wellknown.IsGPUUUID(uuid) {
			r.Modes[uuid] = mode
		}
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = hostfile.Write(filepath.Join(t.dir, modesFile), append(text, '\n'), 0o600, hostfile.Durable)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", modesFile, err)
	}
	return nil
}
