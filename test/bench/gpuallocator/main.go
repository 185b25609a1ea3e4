// Command gpuallocator compares heddle's choice of GPUs with the BestEffort
// policy of github.com/NVIDIA/go-gpuallocator, which NVIDIA's device plugin
// uses, in one run on one machine.
//
//	go run -C test/bench/gpuallocator -mod=mod .
//
// -mod=mod takes over what the root module needs by then.
//
// Both get the same machines and the same requests. The other side is fed
// through its exported types, without NVML: what is timed is its search alone.
// In its device plugin a request reads all links again before that, some 2,200
// NVML calls for 8 GPUs.
//
// It is a module of its own, so that nothing else depends on go-gpuallocator.
package main

import (
	"flag"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/preferred"
)

func main() {
	slow := flag.Bool("slow", false, "also 3, 5, 6 and 7 of 16 GPUs: a minute")
	flag.Parse()
	if err := run(os.Stdout, *slow); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out io.Writer, slow bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REQUESTS\tMACHINE\tNUMBER\tHEDDLE P50\tP99\tMAX\tGO-GPUALLOCATOR P50\tP99\tMAX\t"+
		"TIME RATIO\tSCORE RATIO\tWORST\tNO ANSWER")
	for _, shape := range shapes() {
		p, err := newPair(shape.machine)
		if err != nil {
			return fmt.Errorf("%s: %w", shape.name, err)
		}
		for _, set := range requests(len(shape.machine.GPUs), slow) {
			r, err := p.compare(set.requests)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", shape.name, set.name, err)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%.0f\t%.3f\t%.3f\t%d\n", set.name, shape.name, len(set.requests),
				durations(r.ours)+"\t"+durations(r.theirs), r.timeRatio(), r.scoreRatio(), r.worst, r.broken)
		}
	}
	fmt.Fprintln(w, "\nLIVES\tMACHINE\tPODS\tHEDDLE MB/s PER PAIR\tGO-GPUALLOCATOR\tRATIO\tHEDDLE BEST POSSIBLE\tGO-GPUALLOCATOR")
	for _, shape := range shapes() {
		if len(shape.machine.GPUs) > 8 {
			continue // The other side would take minutes.
		}
		p, err := newPair(shape.machine)
		if err != nil {
			return fmt.Errorf("%s: %w", shape.name, err)
		}
		l, err := p.live(20_000)
		if err != nil {
			return fmt.Errorf("%s, a life: %w", shape.name, err)
		}
		fmt.Fprintf(w, "pods come and go\t%s\t%d\t%.0f\t%.0f\t%.3f\t%.1f %%\t%.1f %%\n", shape.name, l.pods,
			l.ours.mean(), l.theirs.mean(), l.ours.mean()/l.theirs.mean(), l.ours.bestShare(), l.theirs.bestShare())
	}
	return w.Flush()
}

// request is one call: size GPUs of those that are free.
type request struct {
	free uint64
	size int
}

type requestSet struct {
	name     string
	requests []request
}

// requests are all there are for machines of up to 8 GPUs, and requests of an
// empty machine for larger ones.
func requests(n int, slow bool) []requestSet {
	all := uint64(1)<<n - 1
	if n <= 8 {
		var every []request
		for free := uint64(1); free <= all; free++ {
			for size := 1; size <= bits.OnesCount64(free); size++ {
				every = append(every, request{free, size})
			}
		}
		return []requestSet{{"every size of every free set", every}}
	}
	sizes := []int{1, 2, 4, 8, 16}
	if slow {
		sizes = []int{1, 2, 3, 4, 5, 6, 7, 8, 16}
	}
	var sets []requestSet
	for _, size := range sizes {
		sets = append(sets, requestSet{fmt.Sprintf("%d of %d", size, n), []request{{all, size}}})
	}
	var some []request
	for free := uint64(1); free <= all; free += 331 {
		if k := bits.OnesCount64(free); k <= 8 {
			some = append(some, request{free, 1 + len(some)%k})
		}
	}
	return append(sets, requestSet{"8 free or fewer", some})
}

// pair is one machine on both sides.
type pair struct {
	n      int
	ours   *preferred.Scores
	theirs *theirs
}

func newPair(m *machine.Machine) (*pair, error) {
	t, err := newTheirs(m)
	return &pair{n: len(m.GPUs), ours: preferred.New(nil, m), theirs: t}, err
}

// result is the times of both sides and what their choices are worth by the
// other side's own weights.
type result struct {
	ours, theirs       []time.Duration
	sumOurs, sumTheirs int
	worst              float64
	// broken counts the requests that the other side answers with a list that
	// has nil in it: it may prefer the remainder of its partition, which it
	// fills up so, to the set that was asked for. They have no score.
	broken int
}

func (p *pair) compare(requests []request) (*result, error) {
	r := &result{worst: 1}
	for _, q := range requests {
		start := time.Now()
		a, err := p.ours.Choose(q.free, 0, q.size)
		r.ours = append(r.ours, time.Since(start))
		if err != nil {
			return nil, err
		}
		available := p.theirs.list(q.free)
		start = time.Now()
		chosen := p.theirs.policy.Allocate(available, nil, q.size)
		r.theirs = append(r.theirs, time.Since(start))
		b := maskOf(chosen)
		if bits.OnesCount64(b) != q.size {
			r.broken++
			continue
		}
		scoreOurs, scoreTheirs := p.theirs.score(a), p.theirs.score(b)
		r.sumOurs += scoreOurs
		r.sumTheirs += scoreTheirs
		if scoreTheirs > 0 {
			r.worst = min(r.worst, float64(scoreOurs)/float64(scoreTheirs))
		}
	}
	return r, nil
}

func (r *result) timeRatio() float64 { return float64(sum(r.theirs)) / float64(max(sum(r.ours), 1)) }

func (r *result) scoreRatio() float64 {
	if r.sumTheirs == 0 {
		return 1
	}
	return float64(r.sumOurs) / float64(r.sumTheirs)
}

func sum(times []time.Duration) time.Duration {
	total := time.Duration(0)
	for _, t := range times {
		total += t
	}
	return total
}

func durations(times []time.Duration) string {
	sorted := slices.Sorted(slices.Values(times))
	at := func(share int) time.Duration { return sorted[(len(sorted)-1)*share/100] }
	return fmt.Sprintf("%v\t%v\t%v", at(50), at(99), at(100))
}
