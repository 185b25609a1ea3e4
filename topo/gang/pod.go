package gang

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// ErrNoGang is the error of [Read] for a pod that is in no gang.
var ErrNoGang = errors.New("is in no gang")

// Read reads what a pod says. The error is [ErrNoGang], or names every key that
// has a fault; then the Key is set nevertheless if the name is well.
func Read(pod *corev1.Pod, d wellknown.Domains) (Spec, error) {
	r := reader{labels: pod.Labels, annotations: pod.Annotations}
	name, koordinator := r.name()
	if name == "" && len(r.faults) == 0 {
		if key := r.orphan(); key != "" {
			return Spec{}, fmt.Errorf("%s without the name of a gang: it is in %s", key, wellknown.GangName)
		}
		return Spec{}, ErrNoGang
	}
	spec := Spec{Key: types.NamespacedName{Namespace: pod.Namespace, Name: name}}
	r.read(&spec, koordinator, d)
	return spec, errors.Join(r.faults...)
}

// Mentions tells whether a pod has any key that [Read] looks at; cheaper than
// Read, for those who see many pods that have none.
func Mentions(pod *corev1.Pod) bool {
	if len(pod.Labels) == 0 && len(pod.Annotations) == 0 {
		return false
	}
	for _, key := range []string{
		wellknown.GangName, wellknown.GangNameBare, wellknown.GangNameXK8s, wellknown.GangMinAvailable, wellknown.GangMatchPolicy,
		wellknown.GangGroups,
	} {
		if _, ok := pod.Labels[key]; ok {
			return true
		}
	}
	for _, key := range []string{
		wellknown.KoordinatorName, wellknown.KoordinatorMinAvailable, wellknown.KoordinatorGroups, wellknown.GangGroups,
		wellknown.GangMinAvailable,
	} {
		if _, ok := pod.Annotations[key]; ok {
			return true
		}
	}
	return false
}

// reader collects faults.
type reader struct {
	labels, annotations map[string]string
	faults              []error
	remarks             []string
}

func (r *reader) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

// place is a key and where it stands.
type place struct {
	key   string
	label bool
}

func (p place) String() string {
	if p.label {
		return "label " + p.key
	}
	return "annotation " + p.key
}

// one is the value that all places which say anything agree on.
func (r *reader) one(places ...place) (value string, at place) {
	for _, p := range places {
		from := r.annotations
		if p.label {
			from = r.labels
		}
		text, ok := from[p.key]
		text = strings.TrimSpace(text)
		switch {
		case !ok:
		case text == "":
			r.fault("%s is empty", p)
		case value == "":
			value, at = text, p
		case text != value:
			r.fault("%s is %q and %s is %q", at, wellknown.Clip(value), p, wellknown.Clip(text))
		}
	}
	return value, at
}

// name is the gang's name, and whether Koordinator's annotation has it.
func (r *reader) name() (name string, koordinator bool) {
	name, at := r.one(
		place{wellknown.GangName, true}, place{wellknown.GangNameBare, true}, place{wellknown.GangNameXK8s, true},
		place{wellknown.KoordinatorName, false},
	)
	if name != "" && !isName(name) {
		r.fault("%s: %q is no name of an object", at, wellknown.Clip(name))
		name = ""
	}
	return name, !at.label
}

// orphan is a key that makes no sense without a gang's name.
func (r *reader) orphan() string {
	for _, p := range []place{
		{wellknown.GangMinAvailable, true},
		{wellknown.GangGroups, true},
		{wellknown.GangMatchPolicy, true},
		{wellknown.GangMinAvailable, false},
		{wellknown.GangGroups, false},
		{wellknown.KoordinatorMinAvailable, false},
		{wellknown.KoordinatorGroups, false},
	} {
		from := r.annotations
		if p.label {
			from = r.labels
		}
		if _, ok := from[p.key]; ok {
			return p.String()
		}
	}
	return ""
}

// read fills in everything but the key.
func (r *reader) read(s *Spec, koordinator bool, d wellknown.Domains) {
	if text, at := r.one(
		place{wellknown.GangMinAvailable, true}, place{wellknown.GangMinAvailable, false},
		place{wellknown.KoordinatorMinAvailable, false},
	); text != "" {
		s.MinMember = r.number(at, text, MaxMembers)
	}
	s.Policy = r.policy(koordinator)
	s.Groups = r.groups(s.Key)
	if text, at := r.one(place{wellknown.KoordinatorWaitingTime, false}); text != "" {
		s.Timeout = r.duration(at, text)
	}
	r.wishes(s, d)
	for _, key := range []string{wellknown.KoordinatorTotalNumber, wellknown.KoordinatorMode} {
		if _, ok := r.annotations[key]; ok {
			r.remarks = append(r.remarks, "annotation "+key+" is ignored")
		}
	}
	s.Ignored = r.remarks
}

func (r *reader) kind(key string) string {
	text, at := r.one(place{key, false})
	if text != "" && wellknown.CheckValue(text) != nil {
		r.fault("%s: %q is no kind of group", at, wellknown.Clip(text))
		return ""
	}
	return text
}

// number is 1 to most, in digits: 1e3, +1 and 0x1 are slips.
func (r *reader) number(at place, text string, most int) int {
	n, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(n) != text || n < 1 || n > most {
		r.fault("%s: %q is not 1 to %d", at, wellknown.Clip(text), most)
		return 0
	}
	return n
}

func (r *reader) duration(at place, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxTimeout {
		r.fault("%s: %q is no time from 1ns to %s, such as 30s", at, wellknown.Clip(text), maxTimeout)
		return 0
	}
	return d
}

func (r *reader) policy(koordinator bool) Policy {
	text, at := r.one(
		place{wellknown.GangMatchPolicy, true}, place{wellknown.GangMatchPolicy, false}, place{wellknown.KoordinatorMatchPolicy, false},
	)
	p := Policy(text)
	switch {
	case text == "":
		return ""
	case !p.Known():
		r.fault("%s: %q is none of %s, %s, %s, %s", at, wellknown.Clip(text),
			OnceSatisfied, OnlyWaiting, WaitingAndRunning, WaitingRunningSucceed)
		return ""
	case koordinator && p != OnceSatisfied:
		r.remarks = append(r.remarks, fmt.Sprintf("%s: %s is ignored: a gang that %s names is %s",
			at, p, wellknown.KoordinatorName, OnceSatisfied))
		return OnceSatisfied
	}
	return p
}

// groups are the gangs of the group, sorted, with the gang itself.
func (r *reader) groups(self types.NamespacedName) []types.NamespacedName {
	if _, ok := r.labels[wellknown.GangGroups]; ok {
		r.fault("label %s: it is an annotation; a list in JSON is no label value", wellknown.GangGroups)
	}
	ours, at := r.groupsAt(wellknown.GangGroups, self)
	theirs, other := r.groupsAt(wellknown.KoordinatorGroups, self)
	if ours != nil && theirs != nil && !slices.Equal(ours, theirs) {
		r.fault("%s and %s list different gangs", at, other)
	}
	if ours == nil {
		return theirs
	}
	return ours
}

func (r *reader) groupsAt(key string, self types.NamespacedName) ([]types.NamespacedName, place) {
	at := place{key, false}
	text, ok := r.annotations[key]
	if !ok {
		return nil, at
	}
	groups, err := readGroups(text, self)
	if err != nil {
		r.fault("%s: %w", at, err)
	}
	return groups, at
}

// isName tells whether s can be the name of an object or of a namespace.
func isName(s string) bool {
	return wellknown.CheckDomain(s) == nil
}
