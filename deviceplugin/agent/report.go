package agent

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// problemDriver names what is wrong with the driver's CDI spec, problemConfig a
// configuration that is not used because it is bad, problemShares that no shares
// are served though cards are shared.
const (
	problemDriver = "driver"
	problemConfig = "config"
	problemShares = "shares"
)

// Report tells what is served and who has what.
func (a *Agent) Report() report.Report {
	m := a.machine()
	r := report.Report{
		Node: a.NodeName, GPUs: map[string]int{}, Cards: a.cardStates(), Strangers: a.modes.UnknownCordoned(),
		Refused: a.refusals(), Enforcers: a.enforcers(), MPS: a.mpsDaemons(), Unmeasured: a.unmeasured(),
	}
	a.tellShares(r.Cards)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		r.GPUs[g.UUID] = g.Index
		for j := range g.MIG.Devices {
			r.GPUs[g.MIG.Devices[j].UUID] = g.Index
		}
	}
	served, wanted := a.all(), a.wanted(a.now.Load())
	for _, name := range slices.Sorted(maps.Keys(served)) {
		status, kind := served[name].plugin.Status(), report.KindHCA
		if served[name].gpu != nil {
			kind = report.KindGPU
		}
		r.Resources = append(r.Resources, report.Resource{
			Name: name, Kind: kind, Former: !slices.Contains(wanted, name),
			Registered: status.Registered, Owner: status.Owner, Fault: status.Fault,
			Capacity: status.Capacity, Allocatable: status.Allocatable, Withdrawn: status.Withdrawn,
			Reason: served[name].reason(),
		})
	}
	for _, b := range a.binder.Bindings() {
		r.Bindings = append(r.Bindings, report.Binding(b))
	}
	for _, p := range a.binder.Problems() {
		r.Problems = append(r.Problems, report.Problem(p))
	}
	for name, reason := range a.modes.Problems() {
		r.Problems = append(r.Problems, report.Problem{Name: name, Reason: reason})
	}
	if why := a.driver.Problem(); why != "" {
		r.Problems = append(r.Problems, report.Problem{Name: problemDriver, Reason: why})
	}
	if why := a.withoutCDI(); why != "" {
		names := a.config().Resources
		r.Unserved = []string{names.SGPU, names.VCore, names.VMemory}
		r.Problems = append(r.Problems, report.Problem{Name: problemShares, Reason: why})
	}
	if err := a.Configs.Err(); err != nil {
		r.Problems = append(r.Problems, report.Problem{Name: problemConfig, Reason: err.Error()})
	}
	slices.SortFunc(r.Problems, func(a, b report.Problem) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

// tellShares says of shared cards what is taken.
func (a *Agent) tellShares(cards []report.Card) {
	taken := a.binder.Cards()
	for i := range cards {
		at := slices.IndexFunc(taken, func(c quota.GPU) bool { return c.UUID == cards[i].UUID })
		if at < 0 {
			continue
		}
		c := &taken[at]
		cards[i].Shared = &report.Shared{
			Policy: string(c.Policy), Exclusive: c.Exclusive, VCore: c.VCore, UsedMiB: c.UsedMiB, MemoryMiB: c.MemoryMiB,
			Tenants: c.Consumers, Slots: c.Slots, Against: c.Unhealthy,
		}
	}
}

func (a *Agent) refusals() []report.Refusal {
	var all []report.Refusal
	for _, r := range a.binder.Refused() {
		all = append(all, report.Refusal{
			Namespace: r.Pod.Namespace, Pod: r.Pod.Name, UID: r.Pod.UID, Container: r.Container,
			Kind: r.Kind, Reason: r.Reason, Since: r.Since.UTC(),
		})
	}
	return all
}

// enforcers are the choice of a Limiter that makes one.
func (a *Agent) enforcers() *report.Enforcers {
	chooser, ok := a.Limiter.(interface {
		Choice() (enforce.Choice, error)
	})
	if !ok || !a.shares() {
		return nil
	}
	choice, err := chooser.Choice()
	if err != nil {
		return &report.Enforcers{Fault: err.Error()}
	}
	return &report.Enforcers{
		Memory: string(choice.Memory), WhyMemory: choice.WhyMemory,
		Compute: string(choice.Compute), WhyCompute: choice.WhyCompute,
	}
}

// ServeHTTP answers with the Report.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(a.Report()); err != nil {
		a.Log.DebugContext(r.Context(), "report not sent", "err", err)
	}
}

// bound is heddle_bindings{resource}.
type bound struct {
	agent *Agent
	desc  *prometheus.Desc
}

func newBound(a *Agent) *bound {
	return &bound{a, prometheus.NewDesc("heddle_bindings",
		"Containers that have devices of a resource.", []string{"resource"}, nil)}
}

// Describe implements [prometheus.Collector].
func (b *bound) Describe(descs chan<- *prometheus.Desc) { descs <- b.desc }

// Collect implements [prometheus.Collector].
func (b *bound) Collect(metrics chan<- prometheus.Metric) {
	counts := map[string]int{}
	for name := range b.agent.all() {
		counts[name] = 0
	}
	for _, binding := range b.agent.binder.Bindings() {
		for name := range binding.CDINames {
			counts[name]++
		}
	}
	for name, n := range counts {
		metrics <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, float64(n), name)
	}
}
