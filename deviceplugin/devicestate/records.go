package devicestate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

const (
	jsonSuffix = ".json"
	// corruptSuffix takes a file that does not parse out of the way, for a person
	// to read.
	corruptSuffix = ".corrupt"
)

// records is the directory of the checkpoint's entries, a file for each CDI name. Its
// methods are safe for concurrent use.
//
// Nothing is fsynced: what a process has written outlives it however it ends, an entry before its
// CDI spec. After a loss of power no container is left: the kubelet's checkpoint has the names then,
// and what the disk lacks is decided again when a container starts.
type records struct {
	path string // It need not exist.
}

// load reads all entries, by device. What cannot be read is set aside, and the
// other entries are returned beside the error.
func (d *records) load() (map[string]*allocate.Entry, error) {
	all := make(map[string]*allocate.Entry)
	files, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, fmt.Errorf("checkpoint: %w", err)
	}
	var errs []error
	for _, f := range files {
		device, ok := strings.CutSuffix(f.Name(), jsonSuffix)
		if !ok || !cdi.IsDevice(device) {
			continue
		}
		path := filepath.Join(d.path, f.Name())
		content, err := hostfile.Read(path)
		var e *allocate.Entry
		if err == nil {
			e, err = allocate.ParseEntry(content, device)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("checkpoint entry %s, set aside: %w", f.Name(), err),
				os.Rename(path, path+corruptSuffix))
			continue
		}
		all[device] = e
	}
	return all, errors.Join(errs...)
}

// write replaces an entry.
func (d *records) write(e *allocate.Entry) error {
	if err := hostfile.WriteJSON(filepath.Join(d.path, e.Device+jsonSuffix), e, 0o644, hostfile.Quick); err != nil {
		return fmt.Errorf("checkpoint entry of %s: %w", e.Name(), err)
	}
	return nil
}

// probeSize is more than an entry has.
const probeSize = 64 << 10

// probe reports why no entry could be written now, such as a full disk.
func (d *records) probe() error {
	if err := hostfile.Probe(d.path, probeSize); err != nil {
		return fmt.Errorf("no room for checkpoint entries: %w", err)
	}
	return nil
}

// remove removes an entry, if it exists.
func (d *records) remove(e *allocate.Entry) error {
	return hostfile.Remove(filepath.Join(d.path, e.Device+jsonSuffix))
}

// sweep removes entries that were set aside and that keep does not have, and
// what writes before a time that were cut off left.
func (d *records) sweep(keep map[string]bool, before time.Time) error {
	return cdi.SweepDir(d.path, "", jsonSuffix+corruptSuffix, keep, before)
}
