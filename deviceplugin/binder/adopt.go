package binder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
)

// maxSpec is the largest spec of ours that is read back, in bytes.
const maxSpec = 1 << 20

// adopt makes the records anew of containers with shares of which there are
// none, from their CDI specs: somebody removed the records, or they did not
// parse. Without them their cards would be given out again.
func (b *Binder) adopt(now *account) {
	for _, r := range b.unrecorded(now) {
		switch found, err := b.fromSpec(r); {
		case err != nil:
			b.options.Log.Warn("a spec of ours cannot be read", "device", r.Device, "err", err)
		case found:
			b.take(r)
		}
	}
}

// unrecorded are records without shares for the names of which there are none.
func (b *Binder) unrecorded(now *account) []*record {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*record
	for i := range now.holdings {
		h := &now.holdings[i]
		for _, name := range h.names {
			kind, device, ok := parseName(name)
			if !ok || kind != kindSGPU || b.records[device] != nil || !strings.HasPrefix(device, digest(h.resource, h.ids)) {
				continue
			}
			o := h.owner
			all = append(all, &record{
				Kind: kind, Device: device, Resource: h.resource, IDs: h.ids, Created: b.options.Now().UTC(), Owner: &o,
			})
		}
	}
	return all
}

// take adds a record that was lost.
func (b *Binder) take(r *record) {
	b.mu.Lock()
	if b.records[r.Device] != nil {
		b.mu.Unlock()
		return
	}
	b.records[r.Device] = r
	b.drifts = append(b.drifts, Drift{DriftRecord, fmt.Sprintf(
		"the record of container %s of %s was lost and is made anew from its CDI spec", r.Owner.Container, r.Owner.Pod)})
	b.mu.Unlock()
	if err := b.save(r); err != nil {
		b.options.Log.Warn("a record made anew is not on disk yet", "device", r.Device, "err", err)
	}
	b.signal()
}

// fromSpec reads the shares of a record back from its CDI spec. It is false if
// there is no spec: the container has not started yet.
func (b *Binder) fromSpec(r *record) (found bool, err error) {
	f, err := os.Open(filepath.Join(b.options.CDIDir, specFile(r)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxSpec))
	if err != nil {
		return false, err
	}
	return true, r.read(content)
}

// read takes the shares from a spec.
func (r *record) read(content []byte) error {
	var spec cdi.Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		return err
	}
	at := slices.IndexFunc(spec.Devices, func(d cdi.Device) bool { return d.Name == r.Device })
	if at < 0 {
		return errors.New("it is of another device")
	}
	for _, env := range spec.Devices[at].ContainerEdits.Env {
		if text, ok := strings.CutPrefix(env, EnvShares+"="); ok {
			return r.readShares(text)
		}
	}
	return errors.New("it says nothing of shares")
}

func (r *record) readShares(text string) error {
	var s Shares
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("%s: %w", EnvShares, err)
	}
	if len(s.Shares) != len(r.IDs) {
		return fmt.Errorf("%s: %d shares for %d tickets", EnvShares, len(s.Shares), len(r.IDs))
	}
	for _, share := range s.Shares {
		if share.VCore < 0 || share.MemoryMiB < 0 || share.MemoryMiB > allocation.MaxMemoryMiB {
			return fmt.Errorf("%s: %+v is no share", EnvShares, share)
		}
	}
	r.Shares, r.Policy, r.By, r.Turn, r.RunAs, r.Enforced = s.Shares, s.Policy, s.By, s.Turn, s.RunAs, s.Enforced
	return nil
}
