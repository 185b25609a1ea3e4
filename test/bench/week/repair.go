package week

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// Trouble makes gangs fail. Rates are per node and day.
type Trouble struct {
	Name string
	// Lost nodes show it by a condition and come back after repairTime.
	Lost float64
	// Silent faults leave a node Ready: it fails gangs of several nodes for silentTime.
	Silent float64
	// Crashes are of processes that run again anywhere.
	Crashes float64
	// Bugs is the share of gangs that fail within minutes wherever they run.
	Bugs float64
	// Bad has one node with a silent fault all week.
	Bad bool
}

const (
	// silentTime is how long it takes to find and repair a node that looks Ready.
	silentTime = 24 * time.Hour
	// retries is how often a gang with a bug starts again.
	retries = 6
	// lookEvery is the time between two looks at the suspects.
	lookEvery = time.Hour
	perDay    = 1.0 / float64(24*time.Hour)
)

// Llama3 has the rates of the training of Llama 3 405B: 466 interruptions in 54 days on 2,048 nodes, 78 % of them
// from hardware (The Llama 3 Herd of Models, 2024, section 3.3.4). A fifth of the hardware's is silent here: the
// share of its network, NIC, NCCL, thermal and silent data faults.
func Llama3() Trouble {
	const rate, hardware, silent = 466.0 / 54 / 2048, 0.78, 0.2
	return Trouble{
		Name: "Llama 3's rates and bugs", Lost: rate * hardware * (1 - silent), Silent: rate * hardware * silent,
		Crashes: rate * (1 - hardware), Bugs: 0.05,
	}
}

// Repair is how gangs came back from failures in some weeks.
type Repair struct {
	// Failures counts those of gangs without bugs.
	Failures int
	// Whole are the times from a failure to a run that lasts an hour or ends well.
	Whole []time.Duration
	// Lost are node-hours of gangs from their failure until they are whole.
	Lost float64
	// Bad has for each week the gangs that failed on the bad node, Before those until the node was first avoided.
	Bad, Before []int
	// Forced counts runs on the bad node because no other place had room for the gang.
	Forced int
	// Suspects are nodes and groups that were suspect without a fault of the hardware.
	Suspects int
}

// repairs is a week of failures.
type repairs struct {
	*week
	place   *Map
	trouble Trouble
	rng     *rand.Rand
	memory  *suspect.Memory
	care    Care
	buggy   map[*gang]bool
	tries   map[*gang]int
	// broken is when a gang failed that is not whole.
	broken map[*gang]time.Duration
	// sick nodes fail gangs of several nodes, ill ones had any fault of the hardware.
	sick, ill map[int32]bool
	bad       int32
	// avoided reports that the bad node was a suspect once, onBad has the gangs that failed there; before until then.
	avoided       bool
	onBad, before map[*gang]bool
	wrong         map[string]bool
	result        Repair
}

// Care selects how gangs treat suspects.
type Care int

// Careless gangs go anywhere, Avoiding ones avoid suspects where there is other room, as heddle-scheduler does.
const (
	Careless Care = iota
	Avoiding
)

// RepairOf simulates weeks.
func RepairOf(plan Plan, trouble *Trouble, care Care, seeds ...uint64) Repair {
	all, busy := make(chan Repair), make(chan bool, runtime.NumCPU())
	for _, seed := range seeds {
		go func() {
			busy <- true
			r := newRepairs(plan, trouble, seed)
			r.care = care
			one := r.run()
			<-busy
			all <- one
		}()
	}
	var sum Repair
	for range seeds {
		r := <-all
		sum.Failures += r.Failures
		sum.Whole = append(sum.Whole, r.Whole...)
		sum.Lost += r.Lost
		sum.Bad, sum.Before = append(sum.Bad, r.Bad...), append(sum.Before, r.Before...)
		sum.Forced += r.Forced
		sum.Suspects += r.Suspects
	}
	slices.Sort(sum.Whole)
	return sum
}

func newRepairs(plan Plan, trouble *Trouble, seed uint64) *repairs {
	r := &repairs{
		week:  &week{cluster: newCluster(plan, seed), running: map[*gang]bool{}},
		place: &Map{}, trouble: *trouble, rng: rand.New(rand.NewPCG(seed, 500)), bad: nowhere,
		buggy: map[*gang]bool{}, tries: map[*gang]int{}, broken: map[*gang]time.Duration{},
		sick: map[int32]bool{}, ill: map[int32]bool{}, onBad: map[*gang]bool{}, before: map[*gang]bool{},
		wrong: map[string]bool{}, memory: suspect.NewMemory(),
	}
	r.place.Start(r.cluster, seed)
	leaves := make([]v1alpha1.Group, len(r.cluster.leafSizes))
	for n, leaf := range r.cluster.leaf {
		g := &leaves[leaf]
		g.Name = fmt.Sprint("leaf-", leaf)
		g.Child = append(g.Child, v1alpha1.Group{Name: r.name(int32(n)), Kind: v1alpha1.KindNode})
	}
	r.memory.Group(leaves)
	for _, g := range arrivals(rand.New(rand.NewPCG(seed, 100)), r.cluster) {
		r.buggy[g] = r.rng.Float64() < trouble.Bugs
		r.push(event{at: g.at, kind: arrival, gang: g})
	}
	for kind, rate := range map[kind]float64{failure: trouble.Lost, sickness: trouble.Silent, crash: trouble.Crashes} {
		rng := rand.New(rand.NewPCG(seed, 600+uint64(kind)))
		mean := 1 / (rate * perDay * float64(len(r.cluster.free)))
		for at := rng.ExpFloat64() * mean; at < float64(Horizon); at += rng.ExpFloat64() * mean {
			r.push(event{at: time.Duration(at), kind: kind, node: r.anyNode(rng)})
		}
	}
	for at := lookEvery; at < Horizon; at += lookEvery {
		r.push(event{at: at, kind: look})
	}
	if trouble.Bad {
		r.bad = r.anyNode(r.rng)
		r.sick[r.bad], r.ill[r.bad] = true, true
	}
	return r
}

func (r *repairs) anyNode(rng *rand.Rand) int32 { return int32(rng.IntN(len(r.cluster.free))) }

func (r *repairs) run() Repair {
	for len(r.events) > 0 && r.events[0].at <= Horizon {
		e := r.events[0]
		r.events, r.now = r.events[1:], e.at
		r.handle(&e)
		if e.kind != look {
			r.schedule()
		}
	}
	r.now = Horizon
	for _, g := range slices.SortedFunc(maps.Keys(r.broken), byID) {
		r.ended(g, false)
		if at, is := r.broken[g]; is && !r.buggy[g] {
			r.result.Lost += (Horizon - at).Hours() * float64(g.pods)
		}
	}
	r.result.Bad, r.result.Before = []int{len(r.onBad)}, []int{len(r.before)}
	r.result.Suspects = len(r.wrong)
	return r.result
}

func byID(a, b *gang) int { return cmp.Compare(a.id, b.id) }

func (r *repairs) handle(e *event) {
	switch e.kind {
	case arrival:
		r.waiting = append(r.waiting, e.gang)
	case departure:
		if e.gang.run == e.run && e.gang.nodes != nil {
			r.ended(e.gang, true)
			r.report(e.gang, func(p *suspect.Pod) { p.End = r.clock() })
			r.stop(e.gang)
		}
	case failure:
		if r.cluster.down[e.node] {
			return
		}
		r.cluster.down[e.node], r.ill[e.node] = true, true
		r.memory.Node(r.name(e.node), []suspect.Fault{{Since: r.clock(), Reason: "GPU lost"}})
		r.push(event{at: r.now + repairTime, kind: repair, node: e.node})
		r.failOn(e)
	case repair:
		r.cluster.down[e.node], r.sick[e.node] = false, e.node == r.bad
	case sickness:
		r.sick[e.node], r.ill[e.node] = true, true
		for _, g := range r.on(e.node) {
			r.infect(g)
		}
		r.push(event{at: r.now + silentTime, kind: repair, node: e.node})
	case crash:
		if e.gang == nil {
			if all := r.on(e.node); len(all) > 0 { // One process ends, and its gang.
				r.fail(all[r.rng.IntN(len(all))], e)
			}
		} else if e.gang.run == e.run && e.gang.nodes != nil {
			r.fail(e.gang, e)
		}
	case look:
	}
	if r.care != Careless && e.kind >= failure {
		r.look()
	}
}

// on returns the gangs that run on a node.
func (r *repairs) on(node int32) (out []*gang) {
	for _, g := range slices.SortedFunc(maps.Keys(r.running), byID) {
		if slices.Contains(g.nodes, node) {
			out = append(out, g)
		}
	}
	return out
}

func (r *repairs) failOn(e *event) {
	for _, g := range r.on(e.node) {
		r.fail(g, e)
	}
}

// infect lets a run of several nodes fail.
func (r *repairs) infect(g *gang) {
	if g.pods > 1 {
		r.push(event{at: r.now + r.between(5, 40), kind: crash, gang: g, run: g.run})
	}
}

// between returns some minutes.
func (r *repairs) between(least, most int64) time.Duration {
	return time.Duration(float64(least)*float64(time.Minute) + r.rng.Float64()*float64(most-least)*float64(time.Minute))
}

func (r *repairs) name(node int32) string { return r.cluster.tree.Name(node) }

func (r *repairs) clock() time.Time { return time.Unix(0, 0).Add(r.now) }
