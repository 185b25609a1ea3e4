package allocate

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/machines"
)

func fabric(m *machine.Machine) []int {
	var among []int
	for i := range m.HCAs {
		if m.HCAs[i].Role == machine.RoleFabric {
			among = append(among, i)
		}
	}
	return among
}

func named(tb testing.TB, m *machine.Machine, names ...string) []int {
	tb.Helper()
	var list []int
	for _, name := range names {
		at := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Name == name })
		if at < 0 {
			tb.Fatalf("no HCA %s", name)
		}
		list = append(list, at)
	}
	return list
}

// words are a choice as text: HCA and class, in the order of choice.
func words(m *machine.Machine, picks []pick) string {
	var list []string
	for _, p := range picks {
		word := m.HCAs[p.hca].Name
		if p.gpu >= 0 {
			word += " " + p.class.String()
		}
		list = append(list, word)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func TestChoose(t *testing.T) {
	type use = map[string]int
	for _, tt := range []struct {
		name, machine string
		gpus          []int
		n             int
		nominal       []string
		used          use
		without       []string
		kept          []string
		want          string
	}{
		{name: "one each", machine: "dgx-h100", gpus: []int{4, 5}, n: 2, want: "mlx5_6 PIX, mlx5_9 PIX"},
		{
			name: "near GPUs although the IDs name others", machine: "dgx-h100", gpus: []int{0, 7}, n: 2,
			nominal: []string{"mlx5_3", "mlx5_4"}, want: "mlx5_0 PIX, mlx5_11 PIX",
		},
		{
			name: "near GPUs although others use it more", machine: "dgx-h100", gpus: []int{0}, n: 1,
			used: use{"mlx5_0": 60}, want: "mlx5_0 PIX",
		},
		{
			name: "all of all", machine: "dgx-h100", gpus: []int{0, 1, 2, 3, 4, 5, 6, 7}, n: 8,
			want: "mlx5_0 PIX, mlx5_10 PIX, mlx5_11 PIX, mlx5_3 PIX, mlx5_4 PIX, mlx5_5 PIX, mlx5_6 PIX, mlx5_9 PIX",
		},
		{
			name: "more HCAs than GPUs: the NUMA node's, those that the IDs name first", machine: "dgx-h100",
			gpus: []int{1}, n: 3, nominal: []string{"mlx5_5", "mlx5_6"}, want: "mlx5_0 NODE, mlx5_3 PIX, mlx5_5 NODE",
		},
		{
			name: "more HCAs than GPUs: least used", machine: "dgx-h100", gpus: []int{1}, n: 2,
			used: use{"mlx5_0": 2, "mlx5_4": 1, "mlx5_5": 2}, want: "mlx5_3 PIX, mlx5_4 NODE",
		},
		{
			name: "the near one is out", machine: "dgx-h100", gpus: []int{2}, n: 1, without: []string{"mlx5_4"},
			nominal: []string{"mlx5_9"}, want: "mlx5_0 NODE",
		},
		{name: "none are left", machine: "dgx-h100", gpus: []int{2}, n: 9, want: "mlx5_0 NODE, mlx5_10 SYS, " +
			"mlx5_11 SYS, mlx5_3 NODE, mlx5_4 PIX, mlx5_5 NODE, mlx5_6 SYS, mlx5_9 SYS"},
		{
			name: "without GPUs: what the IDs name", machine: "dgx-h100", n: 2, nominal: []string{"mlx5_11", "mlx5_4"},
			used: use{"mlx5_11": 9}, want: "mlx5_11, mlx5_4",
		},
		{
			name: "without GPUs and names: least used", machine: "dgx-h100", n: 1,
			used: use{"mlx5_0": 1, "mlx5_3": 1, "mlx5_5": 1}, want: "mlx5_4",
		},
		{
			name: "what it has stays", machine: "dgx-h100", gpus: []int{0, 1}, n: 2, kept: []string{"mlx5_9"},
			want: "mlx5_3 PIX, mlx5_9 SYS",
		},
		{name: "numbers follow no order", machine: "h200-scrambled-nics", gpus: []int{0, 6}, n: 2, want: "mlx5_4 PIX, mlx5_5 PIX"},
		{
			name: "names with a bond among them", machine: "h800-8ib-bond", gpus: []int{4, 5, 6, 7}, n: 4,
			want: "mlx5_102 PIX, mlx5_104 PIX, mlx5_105 PIX, mlx5_107 PIX",
		},
		{name: "two GPUs share one", machine: "h20-4nic", gpus: []int{0, 1}, n: 1, want: "mlx5_0 PIX"},
		{name: "two GPUs share one, and the next is NODE", machine: "h20-4nic", gpus: []int{0, 1}, n: 2, want: "mlx5_0 PIX, mlx5_1 NODE"},
		{name: "every GPU's before a second for one", machine: "h20-4nic", gpus: []int{0, 1, 4, 5}, n: 2, want: "mlx5_0 PIX, mlx5_2 PIX"},
		{
			name: "the one that serves more", machine: "h20-4nic", gpus: []int{0, 2, 3}, n: 1,
			nominal: []string{"mlx5_0"}, want: "mlx5_1 PIX",
		},
		{
			name: "a second HCA for a switch only after one for each", machine: "dgx-a100", gpus: []int{0, 1, 2}, n: 2,
			want: "mlx5_0 PXB, mlx5_2 PXB",
		},
		{
			name: "every class is the same: rails follow GPUs", machine: "azure-ndv5", gpus: []int{2, 5}, n: 2,
			nominal: []string{"mlx5_ib0", "mlx5_ib7"}, want: "mlx5_ib2 NODE, mlx5_ib5 NODE",
		},
		{name: "nothing is asked for", machine: "dgx-h100", gpus: []int{0}, n: 0, want: ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := machines.Load(t, tt.machine)
			s := newTopology(m)
			w := &hcaRequest{n: tt.n, nominal: map[int]bool{}, used: map[int]int{}, kept: named(t, m, tt.kept...)}
			for _, index := range tt.gpus {
				w.gpus = append(w.gpus, slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.Index == index }))
			}
			without := named(t, m, tt.without...)
			w.among = slices.DeleteFunc(fabric(m), func(i int) bool { return slices.Contains(without, i) })
			for _, i := range named(t, m, tt.nominal...) {
				w.nominal[i] = true
			}
			for name, n := range tt.used {
				w.used[named(t, m, name)[0]] = n
			}
			if diff := cmp.Diff(tt.want, words(m, s.choose(w))); diff != "" {
				t.Errorf("choice (-want +got):\n%s", diff)
			}
		})
	}
}

// TestChoiceServesGPUsBest compares with every other choice: none brings the
// GPUs nearer.
func TestChoiceServesGPUsBest(t *testing.T) {
	for _, name := range []string{"dgx-h100", "h20-4nic", "h800-8ib-bond", "h200-scrambled-nics", "dgx-a100", "azure-ndv5"} {
		m := machines.Load(t, name)
		s := newTopology(m)
		among := fabric(m)
		random := rand.New(rand.NewPCG(1, 2))
		for range 300 {
			w := &hcaRequest{n: 1 + random.IntN(len(among)), among: slices.Clone(among), nominal: map[int]bool{}, used: map[int]int{}}
			for i := range m.GPUs {
				if random.IntN(2) == 0 {
					w.gpus = append(w.gpus, i)
				}
			}
			for _, i := range among {
				w.nominal[i], w.used[i] = random.IntN(2) == 0, random.IntN(4)
			}
			picks := s.choose(w)
			got := s.served(w.gpus, hcasOf(picks))
			subsets(among, w.n, func(other []int) {
				if best := s.served(w.gpus, other); best > got {
					t.Fatalf("%s: GPUs %v: %s serves %d, and %v serves %d", name, w.gpus, words(m, picks), got, other, best)
				}
			})
			random.Shuffle(len(w.among), func(i, j int) { w.among[i], w.among[j] = w.among[j], w.among[i] })
			if again := s.choose(w); words(m, again) != words(m, picks) {
				t.Fatalf("%s: %s, and in another order %s", name, words(m, picks), words(m, again))
			}
		}
	}
}

func (s *topology) served(gpus, hcas []int) (sum int64) {
	for _, gpu := range gpus {
		var best int64
		for _, hca := range hcas {
			best = max(best, weight(s.class(gpu, hca)))
		}
		sum += best
	}
	return sum
}

func subsets(from []int, n int, f func([]int)) {
	for mask := range 1 << len(from) {
		var set []int
		for i, x := range from {
			if mask>>i&1 == 1 {
				set = append(set, x)
			}
		}
		if len(set) == n {
			f(set)
		}
	}
}
