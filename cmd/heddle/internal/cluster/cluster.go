// Package cluster reads one Node and its pods from the API server, for
// commands that explain them. It writes nothing.
package cluster

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// timeout bounds each request.
const timeout = 30 * time.Second

// Flags say which API server to ask.
type Flags struct {
	kubeconfig string
}

// Register adds the flags.
func (f *Flags) Register(set *flag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"),
		"`FILE` that says how to reach the API server; default $KUBECONFIG, then ~/.kube/config, "+
			"then the pod's service account")
}

// Client makes a client for core/v1.
func (f *Flags) Client() (*rest.RESTClient, error) {
	path := f.kubeconfig
	if path == "" {
		if home, err := os.UserHomeDir(); err == nil {
			usual := filepath.Join(home, ".kube", "config")
			if _, err := os.Stat(usual); err == nil {
				path = usual
			}
		}
	}
	return nodesync.NewClient(path, "heddle")
}

// Node reads a Node.
func Node(ctx context.Context, client rest.Interface, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	node := &corev1.Node{}
	if err := client.Get().Resource("nodes").Name(name).Do(ctx).Into(node); err != nil {
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	return node, nil
}

// Pods lists the pods that are bound to a Node.
func Pods(ctx context.Context, client rest.Interface, node string) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var list corev1.PodList
	err := client.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node).Do(ctx).Into(&list)
	if err != nil {
		return nil, fmt.Errorf("list pods of Node %s: %w", node, err)
	}
	return list.Items, nil
}
