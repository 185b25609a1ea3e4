package export

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// The labels and annotations of objects that topo-master writes.
const (
	ManagedByKey = "app.kubernetes.io/managed-by"
	ManagedBy    = "heddle-topo-master"
	// SpecHash is an annotation: what was written, so that it need not be read
	// back to know that it is still right.
	SpecHash = wellknown.Prefix + "spec-hash"
)

// Object is an object as it is applied: of another project's API, or a Node's
// labels.
type Object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   ObjectMetadata `json:"metadata"`
	Spec       any            `json:"spec,omitempty"`
}

// ObjectMetadata is the part that is written.
type ObjectMetadata struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func object(apiVersion, kind, name string, spec any) (Object, error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return Object{}, fmt.Errorf("encode %s %s: %w", kind, name, err)
	}
	sum := sha256.Sum256(b)
	return Object{
		APIVersion: apiVersion, Kind: kind, Spec: spec,
		Metadata: ObjectMetadata{
			Name: name, Labels: map[string]string{ManagedByKey: ManagedBy},
			Annotations: map[string]string{SpecHash: hex.EncodeToString(sum[:8])},
		},
	}, nil
}

// Volcano's API of HyperNodes.
const (
	HyperNodeGroup    = "topology.volcano.sh"
	HyperNodeVersion  = "v1alpha1"
	HyperNodeResource = "hypernodes"
)

// HyperNodeSpec is the spec of a HyperNode
// (https://github.com/volcano-sh/apis, pkg/apis/topology/v1alpha1).
type HyperNodeSpec struct {
	// Tier is lower for nodes that are nearer to each other.
	Tier int `json:"tier"`
	// TierName is the kind of the group; Volcano has it since 1.14.
	TierName string            `json:"tierName,omitempty"`
	Members  []HyperNodeMember `json:"members"`
}

// HyperNodeMember is a Node or another HyperNode.
type HyperNodeMember struct {
	Type     string            `json:"type"`
	Selector HyperNodeSelector `json:"selector"`
}

// HyperNodeSelector names one member.
type HyperNodeSelector struct {
	ExactMatch ExactMatch `json:"exactMatch"`
}

// ExactMatch is a name.
type ExactMatch struct {
	Name string `json:"name"`
}

// HyperNodes returns the groups of a snapshot as Volcano's HyperNodes, those that
// hold others first; named adds tier names.
func HyperNodes(s *fabric.Snapshot, tiers Tiers, named bool) ([]Object, error) {
	out := []Object{}
	for _, e := range s.All() {
		if e.Kind == v1alpha1.KindNode {
			continue
		}
		spec := HyperNodeSpec{Tier: tiers.of(e.Kind)}
		if named {
			spec.TierName = e.Kind
		}
		for _, c := range e.Child {
			m := HyperNodeMember{Type: "HyperNode", Selector: HyperNodeSelector{ExactMatch{objectName(c.Name)}}}
			if c.Kind == v1alpha1.KindNode {
				m = HyperNodeMember{Type: "Node", Selector: HyperNodeSelector{ExactMatch{c.Name}}}
			}
			spec.Members = append(spec.Members, m)
		}
		o, err := object(HyperNodeGroup+"/"+HyperNodeVersion, "HyperNode", objectName(e.Name), spec)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

// objectName makes an object's name of a group's: lower-case, and another one
// for another group.
func objectName(group string) string {
	if wellknown.CheckDomain(group) == nil && len(group) <= wellknown.MaxLabel {
		return group
	}
	lower := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(group))
	// Two groups may differ in what was replaced.
	sum := sha256.Sum256([]byte(group))
	return strings.Trim(wellknown.Shorten(lower, wellknown.MaxLabel-10), "-") + "-" + hex.EncodeToString(sum[:4])
}
