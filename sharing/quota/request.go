package quota

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// ErrNoShare is the error of [ParseRequest] for a container that requests no
// share.
var ErrNoShare = errors.New("requests no share of a GPU")

// ParseRequest reads the request of a container from its limits and its pod's
// annotations. The error is [ErrNoShare], or names every fault with the resource
// or annotation that has it. A request that no GPU of a node can satisfy is no
// fault: see [Explain].
//
//	sgpu     GPUs, 1 to [MaxGPUs]. None or 0 without the others is ErrNoShare.
//	vcore    percent, 1 to 100. None is the configuration's, by default 100, an
//	         exclusive GPU. With best-effort, or where that is 0, none or 0 is no
//	         limit, and nothing is counted.
//	vmemory  a plain number is GiB or MiB, as configured. With a unit suffix it
//	         is bytes, rounded up to MiB.
//	vmemoryPercentage  percent of the GPU's memory, 1 to 100, without vmemory.
//	         None of both is the configuration's, by default the whole memory.
func ParseRequest(limits corev1.ResourceList, annotations map[string]string, c *config.NodeConfig) (Request, error) {
	p := parser{limits: limits, defaults: &c.SGPU.Defaults}
	names := &c.Resources
	if !p.has(names.SGPU) {
		for _, name := range []string{names.VCore, names.VMemory, names.VMemoryPercentage} {
			p.without(name, names.SGPU)
		}
		if p.errs == nil {
			return Request{}, ErrNoShare
		}
		return Request{}, errors.Join(p.errs...)
	}
	r := Request{GPUs: p.gpus(names.SGPU), Policy: p.policy(annotations, c.Domains)}
	r.VCore = p.vcore(names.VCore, names.SGPU, r.Policy)
	r.MemoryMiB, r.MemoryPercent = p.memory(names)
	var err error
	if r.Selector, err = SelectorOf(annotations, c.Domains); err != nil {
		p.errs = append(p.errs, err)
	}
	if r.Placement, err = placement(annotations, wellknown.SGPUPlacement); err != nil {
		p.errs = append(p.errs, err)
	}
	if len(p.errs) > 0 {
		return Request{}, errors.Join(p.errs...)
	}
	return r, nil
}

// String describes the request for people.
func (r *Request) String() string {
	text := r.each() + " of one GPU"
	if r.GPUs != 1 {
		text = fmt.Sprintf("%s of each of %d GPUs", r.each(), r.GPUs)
	}
	return text + ", " + string(r.Policy)
}

// each returns the amount of each GPU.
func (r *Request) each() string {
	memory := "all memory"
	switch {
	case r.MemoryMiB > 0:
		memory = gib(r.MemoryMiB, up) + " GiB"
	case r.MemoryPercent > 0:
		memory = fmt.Sprintf("%d %% of memory", r.MemoryPercent)
	}
	switch {
	case r.VCore >= Whole:
		return "all compute and " + memory
	case r.VCore > 0:
		return fmt.Sprintf("%d %% of compute and %s", r.VCore, memory)
	}
	return memory
}

// parser collects faults.
type parser struct {
	limits   corev1.ResourceList
	defaults *config.ShareDefaults
	errs     []error
}

func (p *parser) errorf(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

// has reports whether a limit exists and is not 0.
func (p *parser) has(name string) bool {
	q, ok := p.limits[corev1.ResourceName(name)]
	return ok && !q.IsZero()
}

func (p *parser) without(name, sgpu string) {
	if p.has(name) {
		p.errorf("%s: %s without %s, the number of GPUs to share", name, p.text(name), sgpu)
	}
}

// text returns a limit as it is written, within bounds.
func (p *parser) text(name string) string {
	q := p.limits[corev1.ResourceName(name)]
	return wellknown.Clip(q.String())
}

// whole returns a quantity as a number up to most; too large ones are most + 1.
func whole(q resource.Quantity, most int64) (n int64, ok bool) {
	if q.CmpInt64(most) > 0 {
		return most + 1, true
	}
	if q.Sign() < 0 {
		return -1, true
	}
	n = q.Value()
	return n, q.CmpInt64(n) == 0
}

func (p *parser) gpus(name string) int {
	n, ok := whole(p.limits[corev1.ResourceName(name)], MaxGPUs)
	switch {
	case !ok:
		p.errorf("%s: %s is not a whole number of GPUs", name, p.text(name))
	case n < 0:
		p.errorf("%s: %s is negative", name, p.text(name))
	case n > MaxGPUs:
		p.errorf("%s: %s GPUs are more than any node has", name, p.text(name))
	}
	return int(n)
}

func (p *parser) vcore(name, sgpu string, policy Policy) int {
	q, ok := p.limits[corev1.ResourceName(name)]
	// Manifests of HAMi write gpucores: 0 for no limit.
	if (policy == BestEffort || p.defaults.VCore == 0) && q.IsZero() {
		return 0
	}
	if !ok {
		return p.defaults.VCore
	}
	otherwise := fmt.Sprintf("without %s it is %d", name, p.defaults.VCore)
	if p.defaults.VCore == Whole {
		otherwise += ", an exclusive GPU"
	}
	return p.percent(name, otherwise, "for more GPUs raise "+sgpu)
}

// percent returns a limit of 1 to 100; the hints are for less and for more.
func (p *parser) percent(name, less, more string) int {
	n, ok := whole(p.limits[corev1.ResourceName(name)], Whole)
	switch {
	case !ok:
		p.errorf("%s: %s is not a whole number of percent", name, p.text(name))
	case n < 1:
		p.errorf("%s: %s is not 1 to 100 percent of a GPU; %s", name, p.text(name), less)
	case n > Whole:
		p.errorf("%s: %s is not 1 to 100 percent of a GPU; %s", name, p.text(name), more)
	}
	return int(n)
}

// policy returns the pod's QoS policy, under either spelling.
func (p *parser) policy(annotations map[string]string, d wellknown.Domains) Policy {
	key := d.SGPUQoSPolicy()
	value, other := strings.TrimSpace(annotations[key]), strings.TrimSpace(annotations[wellknown.SGPUQoSPolicyAlias])
	switch {
	case value == "":
		key, value = wellknown.SGPUQoSPolicyAlias, other
	case other != "" && other != value:
		p.errs = append(p.errs, differ(key, wellknown.SGPUQoSPolicyAlias))
		return FixedShare
	}
	switch policy := Policy(value); policy {
	case "":
		return p.defaults.Policy
	case FixedShare, BurstShare, BestEffort:
		return policy
	}
	p.errorf("annotation %s: unsupported value %q: want %s, %s or %s",
		key, wellknown.Clip(value), FixedShare, BurstShare, BestEffort)
	return FixedShare
}

// Selector selects the GPUs that a pod accepts, by UUID of the GPU or of a MIG device. Both lists are sorted
// and without duplicates.
type Selector struct {
	// Use are the only ones that it accepts; none means all. Avoid are rejected, whatever Use contains.
	Use, Avoid []string
}

// SelectorOf reads a pod's annotations. It fails if an annotation and its alias differ, because one of
// the two owners would be surprised.
func SelectorOf(annotations map[string]string, d wellknown.Domains) (Selector, error) {
	use, useErr := uuids(annotations, d.UseGPUUUID(), wellknown.UseGPUUUIDAlias)
	avoid, avoidErr := uuids(annotations, d.NoUseGPUUUID(), wellknown.NoUseGPUUUIDAlias)
	return Selector{use, avoid}, errors.Join(useErr, avoidErr)
}

// None reports whether it accepts all.
func (s *Selector) None() bool { return len(s.Use) == 0 && len(s.Avoid) == 0 }

// Accepts reports whether the pod accepts a device. parent is the GPU that it is cut from, or its own
// UUID.
func (s *Selector) Accepts(id, parent string) bool {
	in := func(list []string) bool { return names(list, id) || names(list, parent) }
	return (len(s.Use) == 0 || in(s.Use)) && !in(s.Avoid)
}

// Unknown returns the UUIDs to use that a node does not have, clipped to a few, for people.
func (s *Selector) Unknown(has func(uuid string) bool) []string {
	const most = 3
	unknown := slices.DeleteFunc(slices.Clone(s.Use), has)
	more := len(unknown) - most
	unknown = unknown[:min(len(unknown), most)]
	for i, uuid := range unknown {
		unknown[i] = wellknown.Clip(uuid)
	}
	if more > 0 {
		unknown = append(unknown, fmt.Sprintf("%d more", more))
	}
	return unknown
}

// names reports whether a sorted list has a UUID. An annotation has room for tens of thousands, and a
// scheduler asks for each GPU of each node.
func names(list []string, uuid string) bool {
	_, found := slices.BinarySearch(list, uuid)
	return found
}

// uuids returns the list under a key or its alias.
func uuids(annotations map[string]string, key, alias string) ([]string, error) {
	list, other := split(annotations[key]), split(annotations[alias])
	switch {
	case len(list) == 0:
		return other, nil
	case len(other) == 0 || slices.Equal(list, other):
		return list, nil
	}
	return nil, differ(key, alias)
}

// Placements returns the placements in a pod's annotations for a scheduler: for its GPUs and for
// its node. heddle's annotation covers both; HAMi has one for each. Empty means no placement. It
// fails if heddle's and HAMi's annotations differ, and for any other word, also for the words that
// only HAMi defines.
func Placements(annotations map[string]string) (gpus, nodes config.Placement, err error) {
	both, err := placement(annotations, wellknown.SGPUPlacement)
	errs := []error{err}
	one := func(key string) config.Placement {
		its, err := placement(annotations, key)
		if err == nil && both != "" && its != "" && its != both {
			err = differ(wellknown.SGPUPlacement, key)
		}
		errs = append(errs, err)
		return cmp.Or(both, its)
	}
	gpus, nodes = one(wellknown.HAMiGPUPolicy), one(wellknown.HAMiNodePolicy)
	return gpus, nodes, errors.Join(errs...)
}

func placement(annotations map[string]string, key string) (config.Placement, error) {
	how := config.Placement(strings.TrimSpace(annotations[key]))
	if how == "" || how == config.PlacementBinpack || how == config.PlacementSpread {
		return how, nil
	}
	return "", fmt.Errorf("annotation %s: %q is neither %s nor %s",
		key, wellknown.Clip(string(how)), config.PlacementBinpack, config.PlacementSpread)
}

func differ(key, alias string) error {
	return fmt.Errorf("annotations %s and %s are both present and differ", key, alias)
}

func split(text string) []string {
	var list []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, word)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
