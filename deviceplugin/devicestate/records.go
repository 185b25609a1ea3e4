package devicestate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	jsonSuffix = ".json"
	// corruptSuffix takes a file that does not parse out of the way, for a person
	// to read.
	corruptSuffix = ".corrupt"
	// syncAfter is the time for which files are gathered before fsync, which delays all writes to
	// the disk, including entries of starting containers. ext4 takes as long (its mount option
	// commit).
	syncAfter = 5 * time.Second
)

// records is the directory of the checkpoint's entries, a file for each CDI name. Its
// methods are safe for use by several goroutines.
//
// Its run fsyncs files some seconds after they were written, off the path of every start: a
// disk that is busy takes 100 ms and more for that. That is for loss of power
// alone. What a process has written outlives it however it ends, in the order in
// which it was written: an entry before its CDI spec. After a loss
// of power no container is left. The kubelet's checkpoint has the names then, and
// what a container had in the last moment is decided again when it starts.
type records struct {
	path string

	mu sync.Mutex // guards all below
	// written are the names of files since the last fsync, syncErr why that failed.
	written map[string]bool
	syncErr error
	// unsynced is set when a file was written.
	unsynced notify.Signal
	// added are the lines of entries that only the list of names has, by device;
	// dropped counts those that it has and need not.
	added   map[string][]byte
	dropped int
	// names is the open list of names, nil before its first line; namesInfo is its file.
	names     *os.File
	namesInfo os.FileInfo
}

// newRecords makes records for a path, which need not exist.
func newRecords(path string) *records {
	return &records{path: path, written: make(map[string]bool), added: make(map[string][]byte), unsynced: notify.New()}
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
		content, err := os.ReadFile(path)
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
	errs = append(errs, d.loadNames(all))
	return all, errors.Join(errs...)
}

// write replaces an entry. It is on the disk some seconds later; see [records.run].
func (d *records) write(e *allocate.Entry) error {
	content, err := json.Marshal(e)
	if err == nil {
		name := e.Device + jsonSuffix
		err = hostfile.Write(filepath.Join(d.path, name), append(content, '\n'), 0o644, hostfile.Quick)
		if err == nil {
			d.mu.Lock()
			d.written[name] = true
			d.mu.Unlock()
			d.unsynced.Notify()
			err = d.dropName(e.Device)
		}
	}
	if err != nil {
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
	err := os.Remove(filepath.Join(d.path, e.Device+jsonSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, d.dropName(e.Device))
}

// sweep removes entries that were set aside and that keep does not have, and
// what writes before a time that were cut off left.
func (d *records) sweep(keep map[string]bool, before time.Time) error {
	return cdi.SweepDir(d.path, "", jsonSuffix+corruptSuffix, keep, before)
}

// lastSyncErr returns the error of the last fsync.
func (d *records) lastSyncErr() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncErr
}

// run syncs written files to the disk, until ctx ends and all are synced.
func (d *records) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			d.sync()
			return
		case <-d.unsynced:
		}
		select {
		case <-ctx.Done():
		case <-time.After(syncAfter):
		}
		d.sync()
	}
}

func (d *records) sync() {
	d.mu.Lock()
	names := d.written
	d.written = make(map[string]bool)
	d.mu.Unlock()
	if len(names) == 0 {
		return
	}
	var errs []error
	for name := range names {
		errs = append(errs, fsync(filepath.Join(d.path, name)))
	}
	err := errors.Join(append(errs, fsync(d.path))...)
	d.mu.Lock()
	d.syncErr = err
	d.mu.Unlock()
}

// fsync syncs a file, or a directory's names of its files. One that has gone is
// in order.
func fsync(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
