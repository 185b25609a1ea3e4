package agent

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// stuck is the least time without a new round after which the agent counts as stuck: rounds are
// short, but a machine may be busy.
const stuck = 30 * time.Second

// Alive returns an error text if the loop no longer runs.
func (a *Agent) Alive() string {
	if time.Since(*a.beat.Load()) > max(3*a.Interval, stuck) {
		return "no round for three intervals"
	}
	return ""
}

// Ready names the resources that the kubelet does not take from the plugin.
func (a *Agent) Ready() string {
	waits := "not served yet"
	switch {
	case !a.driver.known.Load():
		waits = "waits for the driver's CDI spec"
	case !a.modes.Known():
		waits = "waits until the holders of GPUs are known"
	}
	running := a.resources.all()
	var wrong []string
	for name, s := range running {
		switch status := s.plugin.Status(); {
		case status.Registered:
		case status.Owner != "":
			wrong = append(wrong, name+": served by "+status.Owner)
		default:
			wrong = append(wrong, name+": "+cmp.Or(status.Fault, "not registered yet"))
		}
	}
	for _, name := range a.last.Load().Wanted {
		if running[name] == nil {
			wrong = append(wrong, name+": "+waits)
		}
	}
	slices.Sort(wrong)
	return strings.Join(wrong, "; ")
}

// Report returns the state of the device plugin: resources, GPUs and containers.
func (a *Agent) Report() report.Report {
	now, view := a.last.Load(), a.state.View()
	m := now.Inventory.Machine
	r := report.Report{
		Node: a.NodeName, GPUIndices: map[string]int{}, UnknownCordoned: a.modes.UnknownCordoned(),
		Rejected: a.state.Rejections(), MPS: daemons(a.Limiter), Bindings: view.Allocations(), Problems: a.problems(now),
	}
	taken := view.GPUs()
	for _, g := range a.modes.GPUs() {
		g.Shared = shared(taken, g.UUID)
		r.GPUs = append(r.GPUs, g.GPU)
	}
	if now.Sharing {
		r.Unmeasured, r.Enforcers = a.meter.unmeasured(), a.enforcers()
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		r.GPUIndices[g.UUID] = g.Index
		for j := range g.MIG.Devices {
			r.GPUIndices[g.MIG.Devices[j].UUID] = g.Index
		}
	}
	served := a.resources.served()
	kinds := map[cdi.Kind]string{
		cdi.GPU: report.KindGPU, cdi.RDMA: report.KindHCA, cdi.SGPU: report.KindShare, publish.Counted: report.KindShare,
	}
	for _, name := range slices.Sorted(maps.Keys(served)) {
		status := served[name].Status
		r.Resources = append(r.Resources, report.Resource{
			Name: name, Kind: kinds[served[name].Kind], Former: !slices.Contains(now.Wanted, name),
			Registered: status.Registered, Owner: status.Owner, LastError: status.Fault,
			Capacity: status.Capacity, Allocatable: status.Allocatable, Withdrawn: status.Withdrawn,
			Reason: now.Reason(name),
		})
	}
	return r
}

// problems returns the faults of the device plugin's inputs, by name.
func (a *Agent) problems(r *publish.Round) []report.Problem {
	problems := append(a.state.Problems(), a.modes.Problems()...)
	if a.claims != nil {
		problems = append(problems, a.claims.Problems()...)
	}
	add := func(name, reason string) {
		if reason != "" {
			problems = append(problems, report.Problem{Name: name, Reason: reason})
		}
	}
	add("driver", a.driver.spec.Problem())
	add("shares", r.WithoutShares)
	if a.claims == nil && a.modes.Any(config.ModeClaims) {
		add("claims", "GPUs are for claims, and the DRA driver does not run: set gpuDevice.claims.enabled")
	}
	if err := a.Configs.Err(); err != nil {
		add("config", err.Error())
	}
	slices.SortFunc(problems, func(a, b report.Problem) int { return cmp.Compare(a.Name, b.Name) })
	return problems
}

// shared returns the use of a shared GPU; nil for others.
func shared(taken []quota.GPU, uuid string) *quota.GPU {
	at := slices.IndexFunc(taken, func(c quota.GPU) bool { return c.UUID == uuid })
	if at < 0 {
		return nil
	}
	return &taken[at]
}

// enforcers returns the Limiter's choice for new shares.
func (a *Agent) enforcers() *report.Enforcers {
	if a.Limiter == nil {
		return nil
	}
	choice, err := a.Limiter.Choice()
	if err != nil {
		return &report.Enforcers{LastError: err.Error()}
	}
	return &report.Enforcers{Choice: choice}
}

// ServeHTTP answers with the Report.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(a.Report()); err != nil {
		a.Log.DebugContext(r.Context(), "report not sent", "err", err)
	}
}
