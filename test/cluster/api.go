//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// newClient is the administrator's, without a limit of requests.
func newClient(kubeconfig string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Timeout = -1, 30*time.Second
	return kubernetes.NewForConfig(config)
}

// answers reports whether the API server has an answer at a path.
func (c *Cluster) answers(ctx context.Context, path string) bool {
	client, err := c.client()
	if err != nil {
		return false
	}
	_, err = client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	return err == nil
}

func (c *Cluster) nodeReady(ctx context.Context, name string) (bool, error) {
	client, err := c.client()
	if err != nil {
		return false, err
	}
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}), nil
}

// WaitNodeReady waits until a node, real or simulated, is Ready.
func (c *Cluster) WaitNodeReady(ctx context.Context, name string) error {
	var last error
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		var ok bool
		ok, last = c.nodeReady(ctx, name)
		return ok, nil
	})
	if err != nil {
		return fmt.Errorf("wait for node %s: %w", name, errors.Join(err, last))
	}
	return nil
}

// kwokAnnotation marks the nodes that kwok simulates; it leaves all others alone.
const kwokAnnotation = "kwok.x-k8s.io/node"

// SimulatedNode is a node that exists in the API only. The kwok controller keeps
// it Ready and reports the pods bound to it as running.
type SimulatedNode struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	// Capacity is also allocatable; cpu, memory, pods and ephemeral-storage have defaults.
	Capacity map[string]string
	Taints   []corev1.Taint
}

// AddSimulatedNode creates a simulated node. The cluster has to run with Kwok. The API server keeps
// the status of a created Node, which is how kubelets register with their capacity.
func (c *Cluster) AddSimulatedNode(ctx context.Context, n SimulatedNode) error {
	if !c.state.Kwok {
		return fmt.Errorf("add simulated node %s: the cluster runs without kwok", n.Name)
	}
	room := corev1.ResourceList{}
	for name, amount := range with(n.Capacity, "cpu", "64", "memory", "512Gi", "pods", "110", "ephemeral-storage", "1Ti") {
		quantity, err := resource.ParseQuantity(amount)
		if err != nil {
			return fmt.Errorf("add simulated node %s: %s: %w", n.Name, name, err)
		}
		room[corev1.ResourceName(name)] = quantity
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, Annotations: with(n.Annotations, kwokAnnotation, "fake", "node.alpha.kubernetes.io/ttl", "0"),
			Labels: with(n.Labels, corev1.LabelHostname, n.Name, corev1.LabelOSStable, "linux", corev1.LabelArchStable, "amd64",
				"type", "kwok"),
		},
		Spec:   corev1.NodeSpec{Taints: n.Taints},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("add simulated node %s: %w", n.Name, err)
	}
	return nil
}

// with is a map over defaults, in pairs.
func with(own map[string]string, defaults ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(defaults); i += 2 {
		all[defaults[i]] = defaults[i+1]
	}
	maps.Copy(all, own)
	return all
}
