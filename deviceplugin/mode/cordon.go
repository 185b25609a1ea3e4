package mode

import (
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Cordon takes the value of [wellknown.CordonedGPUs], the Node's annotation, empty
// if the Node has none. What is unknown to the API server's client must not be
// given: then the last known cards stay cordoned. Call it before Round.
func (t *Tracker) Cordon(text string) {
	uuids, err := wellknown.ParseCordoned(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(FaultCordon, err)
	if err != nil && len(uuids) == 0 {
		return
	}
	now := make(map[string]bool, len(uuids))
	for _, uuid := range uuids {
		now[uuid] = true
	}
	changed := !maps.Equal(now, t.cordoned)
	if !changed && !t.cordonUnsaved {
		return
	}
	t.cordoned = now
	err = store(t.options.StateDir, cordonsFile, &cordonsText{version, uuids})
	t.note(FaultCordonSaving, err)
	t.cordonUnsaved = err != nil
	if changed {
		t.options.Log.Info("cordoned cards changed", "uuids", uuids)
	}
}

// Strangers are the cordoned UUIDs that the machine does not have, sorted: cards
// that were taken out, or mistakes.
func (t *Tracker) Strangers() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.machine == nil {
		return nil
	}
	rest := maps.Clone(t.cordoned)
	for i := range t.machine.GPUs {
		delete(rest, t.machine.GPUs[i].UUID)
	}
	return slices.Sorted(maps.Keys(rest))
}
