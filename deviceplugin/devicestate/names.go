package devicestate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// namesFile holds the entries without an owner, one per line. A pod's admission
// waits until its names are there, and appending a line takes a fraction of the
// time of a separate file: no inode is made. An entry leaves it when it gets a
// file, or is removed: at once if it is the last, else with maxDropped others.
const (
	namesFile  = "names.jsonl"
	maxDropped = 256
)

// add records an entry that has no owner. It is not put on the disk: after a loss
// of power the name in the kubelet's checkpoint is worth as much.
func (d *records) add(e *allocate.Entry) error {
	line, err := json.Marshal(e)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		line = append(line, '\n')
		err = d.appendLocked(line)
	}
	if err != nil {
		return fmt.Errorf("checkpoint entry of %s: %w", e.Name(), err)
	}
	d.added[e.Device] = line
	return nil
}

// appendLocked adds a line whole or not at all. The caller holds mu.
func (d *records) appendLocked(line []byte) error {
	f, err := d.openNamesLocked()
	if err != nil {
		return err
	}
	n, err := f.Write(line)
	if err != nil && n > 0 {
		// The next line would go on where this one was cut off.
		if info, errStat := f.Stat(); errStat == nil {
			err = errors.Join(err, f.Truncate(info.Size()-int64(n)))
		}
	}
	return err
}

// openNamesLocked returns the list's file, open to be appended to. It stays open, since to open
// a file takes as long as all else that Allocate does; another one is opened when the path
// leads to another file: the list was written again, or the directory was replaced. The caller
// holds mu.
func (d *records) openNamesLocked() (*os.File, error) {
	path := filepath.Join(d.path, namesFile)
	if info, err := os.Stat(path); err == nil && d.names != nil && os.SameFile(info, d.namesInfo) {
		return d.names, nil
	}
	if d.names != nil {
		_ = d.names.Close() // It was written to already, by calls that reported their errors.
		d.names = nil
	}
	const flags, perm = os.O_APPEND | os.O_CREATE | os.O_WRONLY, 0o644
	f, err := os.OpenFile(path, flags, perm)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(d.path, 0o755); err != nil { //nolint:gosec // As hostfile.Write makes it.
			return nil, err
		}
		f, err = os.OpenFile(path, flags, perm)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d.names, d.namesInfo = f, info
	return f, nil
}

// dropName forgets a name. Until the next restart that is enough.
func (d *records) dropName(device string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.added[device] == nil {
		return nil
	}
	delete(d.added, device)
	if d.dropped++; len(d.added) > 0 && d.dropped < maxDropped {
		return nil
	}
	return d.writeNamesLocked()
}

// writeNamesLocked writes the list of added entries that were not dropped. The caller
// holds mu.
func (d *records) writeNamesLocked() error {
	d.dropped = 0
	path := filepath.Join(d.path, namesFile)
	if len(d.added) == 0 {
		err := os.Truncate(path, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	var content []byte
	for _, device := range slices.Sorted(maps.Keys(d.added)) {
		content = append(content, d.added[device]...)
	}
	return hostfile.Write(path, content, 0o644, hostfile.Quick)
}

// loadNames adds the entries of the list that have no file to all, and writes the
// list again with these alone. A line that was cut off is of a name that no
// container got.
func (d *records) loadNames(all map[string]*allocate.Entry) error {
	path := filepath.Join(d.path, namesFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("names without an owner: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(content) > 0 && content[len(content)-1] != '\n' {
		content = append(content, '\n') // The next line must not continue the last one.
	}
	for line := range bytes.Lines(content) {
		var named struct {
			Device string `json:"device"`
		}
		if json.Unmarshal(line, &named) != nil || !cdi.IsDevice(named.Device) || all[named.Device] != nil {
			continue
		}
		if e, err := allocate.ParseEntry(line, named.Device); err == nil {
			all[named.Device], d.added[named.Device] = e, line
		}
	}
	if err := d.writeNamesLocked(); err != nil {
		return fmt.Errorf("names without an owner: %w", err)
	}
	return nil
}
