//go:build linux

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/http"
)

// Taint is a node taint.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// SimulatedNode is a node that exists in the API only. The kwok controller keeps
// it Ready and reports the pods bound to it as running.
type SimulatedNode struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	// Capacity is also allocatable; cpu, memory, pods and ephemeral-storage have defaults.
	Capacity map[string]string
	Taints   []Taint
}

// AddSimulatedNode creates a simulated node. The cluster has to run with Kwok.
func (c *Cluster) AddSimulatedNode(ctx context.Context, n SimulatedNode) error {
	if !c.state.Kwok {
		return fmt.Errorf("add simulated node %s: the cluster runs without kwok", n.Name)
	}
	if err := c.do(ctx, http.MethodPost, "/api/v1/nodes", n.object(), nil); err != nil {
		return fmt.Errorf("add simulated node %s: %w", n.Name, err)
	}
	return nil
}

// object is the Node. The API server keeps the status of a created Node, which is
// how kubelets register with their capacity.
func (n SimulatedNode) object() map[string]any {
	labels := map[string]string{
		"kubernetes.io/hostname": n.Name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "kwok",
	}
	maps.Copy(labels, n.Labels)
	annotations := map[string]string{kwokAnnotation: "fake", "node.alpha.kubernetes.io/ttl": "0"}
	maps.Copy(annotations, n.Annotations)
	capacity := map[string]string{"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
	maps.Copy(capacity, n.Capacity)
	type m = map[string]any
	return m{
		"apiVersion": "v1", "kind": "Node",
		"metadata": m{"name": n.Name, "labels": labels, "annotations": annotations},
		"spec":     m{"taints": n.Taints},
		"status":   m{"capacity": capacity, "allocatable": capacity},
	}
}
