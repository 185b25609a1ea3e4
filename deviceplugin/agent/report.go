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
// are served though GPUs are shared.
const (
	problemDriver = "driver"
	problemConfig = "config"
	problemShares = "shares"
)

// Report is what is served, and which container has what.
func (a *Agent) Report() report.Report {
	m := a.machine()
	r := report.Report{
		Node: a.NodeName, GPUIndices: map[string]int{}, GPUs: modeStates(a.modes.GPUs()),
		UnknownCordoned: a.modes.UnknownCordoned(),
		Rejected:        a.rejections(), Enforcers: a.enforcers(), MPS: a.mpsDaemons(),
	}
	a.addShares(r.GPUs)
	if a.sharing() {
		r.Unmeasured = a.usage.unmeasured()
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		r.GPUIndices[g.UUID] = g.Index
		for j := range g.MIG.Devices {
			r.GPUIndices[g.MIG.Devices[j].UUID] = g.Index
		}
	}
	served, wanted := a.resources.all(), a.resources.wanted(a.now.Load())
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
	for _, b := range a.state.View().Allocations() {
		r.Bindings = append(r.Bindings, report.Binding(b))
	}
	for _, p := range a.state.Problems() {
		r.Problems = append(r.Problems, report.Problem(p))
	}
	for name, reason := range a.modes.Problems() {
		r.Problems = append(r.Problems, report.Problem{Name: name, Reason: reason})
	}
	if reason := a.driver.Problem(); reason != "" {
		r.Problems = append(r.Problems, report.Problem{Name: problemDriver, Reason: reason})
	}
	if reason := a.resources.withoutCDI(); reason != "" {
		names := a.config().Resources
		r.Unserved = []string{names.SGPU, names.VCore, names.VMemory}
		r.Problems = append(r.Problems, report.Problem{Name: problemShares, Reason: reason})
	}
	if err := a.Configs.Err(); err != nil {
		r.Problems = append(r.Problems, report.Problem{Name: problemConfig, Reason: err.Error()})
	}
	slices.SortFunc(r.Problems, func(a, b report.Problem) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

// addShares adds what is taken of shared GPUs.
func (a *Agent) addShares(gpus []report.GPU) {
	taken := a.state.View().GPUs()
	for i := range gpus {
		at := slices.IndexFunc(taken, func(c quota.GPU) bool { return c.UUID == gpus[i].UUID })
		if at < 0 {
			continue
		}
		c := &taken[at]
		gpus[i].Shared = &report.Shared{
			Policy: string(c.Policy), Exclusive: c.Exclusive, VCore: c.VCore, UsedMiB: c.UsedMiB, MemoryMiB: c.MemoryMiB,
			Consumers: c.Consumers, Slots: c.Slots, Unhealthy: c.Unhealthy,
		}
	}
}

func (a *Agent) rejections() []report.Rejection {
	var all []report.Rejection
	for _, r := range a.state.Rejections() {
		all = append(all, report.Rejection{
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
	if !ok || !a.sharing() {
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

// allocationMetrics is heddle_bindings{resource}.
type allocationMetrics struct {
	*resources
	desc *prometheus.Desc
}

func allocationsDesc() *prometheus.Desc {
	return prometheus.NewDesc("heddle_bindings", "Containers that have devices of a resource.", []string{"resource"}, nil)
}

// Describe implements [prometheus.Collector].
func (b allocationMetrics) Describe(descs chan<- *prometheus.Desc) { descs <- b.desc }

// Collect implements [prometheus.Collector].
func (b allocationMetrics) Collect(metrics chan<- prometheus.Metric) {
	counts := map[string]int{}
	for name := range b.all() {
		counts[name] = 0
	}
	for _, a := range b.state.View().Allocations() {
		for name := range a.CDINames {
			counts[name]++
		}
	}
	for name, n := range counts {
		metrics <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, float64(n), name)
	}
}
