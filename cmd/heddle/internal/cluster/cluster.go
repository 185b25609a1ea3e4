// Package cluster reads one Node and its pods from the API server, for
// commands that explain them. It writes nothing.
package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// timeout bounds each request.
const timeout = 30 * time.Second

// Flags say which API server to ask.
type Flags struct {
	kubeconfig, context string
}

// Register adds the flags.
func (f *Flags) Register(set *flag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", "",
		"`FILE` that says how to reach the API server; default $KUBECONFIG, then ~/.kube/config, "+
			"then the pod's service account")
	set.StringVar(&f.context, "context", "", "`NAME` of the kubeconfig's context; default its current one")
}

// Client makes a client for core/v1, by the rules of kubectl: $KUBECONFIG may
// be a list of files, which are merged.
func (f *Flags) Client() (*rest.RESTClient, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	rules.WarnIfAllMissing = false
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no API server to ask: give --kubeconfig or set $KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return nodesync.ClientFor(config, "heddle")
}

// AppLabel is the pod label with the program's name.
const AppLabel = "app.kubernetes.io/name"

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

// Runs tells whether a program of ours has a pod on any Node.
func Runs(ctx context.Context, client rest.Interface, app string) (bool, error) {
	pod, err := Pod(ctx, client, app)
	return pod != nil, err
}

// Pod is any pod of a program of ours; nil if it has none.
func Pod(ctx context.Context, client rest.Interface, app string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var list corev1.PodList
	err := client.Get().Resource("pods").Param("labelSelector", AppLabel+"="+app).Param("limit", "1").Do(ctx).Into(&list)
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", app, err)
	}
	if len(list.Items) == 0 {
		return nil, nil //nolint:nilnil // That there is none is an answer.
	}
	return &list.Items[0], nil
}

// ConfigMap reads a ConfigMap.
func ConfigMap(ctx context.Context, client rest.Interface, namespace, name string) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m := &corev1.ConfigMap{}
	if err := client.Get().Namespace(namespace).Resource("configmaps").Name(name).Do(ctx).Into(m); err != nil {
		return nil, fmt.Errorf("read ConfigMap %s/%s: %w", namespace, name, err)
	}
	return m, nil
}
