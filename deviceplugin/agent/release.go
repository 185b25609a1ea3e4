package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/internal/atomicfile"
)

// releaseFile is in the state directory while a release lasts.
const releaseFile = "gpu-release.json"

// SavedRelease outlives a restart of the device plugin under a release:
// without a session with the driver, nothing else knows the GPUs that pods hold.
type SavedRelease struct {
	Request release.Request `json:"request"`
	// Machine is the last one before the release, a dump as heddle inspect writes it.
	Machine json.RawMessage `json:"machine"`
}

// LoadRelease reads what a device plugin saved under a release, and the machine in
// it; nil if none lasted.
func LoadRelease(stateDir string) (*SavedRelease, *machine.Machine, error) {
	path := filepath.Join(stateDir, releaseFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the release: %w", err)
	}
	var saved SavedRelease
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	m, err := machine.Decode(saved.Machine)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return &saved, m, nil
}

// releases follow what the Node's annotation asks about the release of its GPUs. They
// are the loop's alone.
type releases struct {
	*Options
	// text is the annotation's, asked what it asks for; lasting is the release that
	// GPUs are under. It lasts longer than it is asked for: until the driver has
	// answered again.
	text           string
	asked, lasting release.Request
}

func newReleases(o *Options) *releases {
	r := &releases{Options: o, asked: o.Released, lasting: o.Released}
	if r.lasting.Until.IsZero() {
		r.forget() // It ended while no device plugin ran.
	}
	return r
}

func (r *releases) forget() {
	if err := os.Remove(filepath.Join(r.StateDir, releaseFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Log.Warn("file of the release not removed", "err", err)
	}
}

// round returns the release that GPUs are under, the zero one for none, and the GPUs that
// a release has just given back. m is the machine of this round.
func (r *releases) round(m *machine.Machine) (lasting release.Request, back []string) {
	if text, known := r.API.Annotation(wellknown.GPURelease); known {
		r.ask(text)
	}
	switch active := r.asked.Active(time.Now()); {
	case active && !r.asked.Equal(r.lasting):
		r.lasting = r.asked
		r.save(m)
		r.Release.Set(r.asked.Until)
		r.Log.Info("GPUs released", "until", r.asked.Until, "gpus", r.asked.GPUs)
		r.API.Record(health.NodeEvent{Reason: wellknown.EventGPUsReleased, Message: fmt.Sprintf(
			"the driver of the GPUs is released until %s: no new pod gets %s, running pods are not touched",
			r.asked.Until.UTC().Format(time.RFC3339), named(r.asked))})
	case !active && !r.lasting.Until.IsZero():
		r.Release.Set(time.Time{})
		if closed, _ := r.Release.Closed(); !closed && (r.Release == nil || m == r.Source.Machine()) {
			back = r.end(m)
		}
	}
	return r.lasting, back
}

func named(r release.Request) string {
	switch len(r.GPUs) {
	case 0:
		return "a GPU"
	case 1:
		return "GPU " + r.GPUs[0]
	}
	return fmt.Sprintf("one of %d GPUs", len(r.GPUs))
}

// ask takes the annotation. One that does not parse asks for nothing.
func (r *releases) ask(text string) {
	asked, err := release.Parse(text)
	if err != nil && text != r.text {
		r.Log.Warn("release of GPUs ignored", "err", err)
		r.API.Record(health.NodeEvent{Warning: true, Reason: wellknown.EventGPUReleaseInvalid, Message: err.Error()})
	}
	r.text, r.asked = text, asked
}

// end gives the GPUs, which it returns, to pods again. An operator may have reset them, so earlier
// faults are forgotten, as after a restart.
func (r *releases) end(m *machine.Machine) (back []string) {
	why := "it was taken back"
	if r.asked.Equal(r.lasting) {
		why = "its time is over"
	}
	for i := range m.GPUs {
		if r.lasting.Covers(m.GPUs[i].UUID) {
			back = append(back, m.GPUs[i].UUID)
		}
	}
	r.lasting = release.Request{}
	r.forget()
	r.Log.Info("release of GPUs ended", "reason", why)
	r.API.Record(health.NodeEvent{Reason: wellknown.EventGPUReleaseEnded, Message: fmt.Sprintf(
		"the release of the GPUs has ended, since %s: the driver is in use again with %d GPUs", why, len(m.GPUs))})
	return back
}

// save keeps the machine for a start under the release. Without the file such a
// start knows no GPU until the release has ended.
func (r *releases) save(m *machine.Machine) {
	dump, err := machine.Encode(m)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(SavedRelease{Request: r.asked, Machine: dump}); err == nil {
			err = atomicfile.Write(filepath.Join(r.StateDir, releaseFile), text, 0o600, atomicfile.Durable)
		}
	}
	if err != nil {
		r.Log.Warn("release of GPUs not saved", "err", err)
	}
}
