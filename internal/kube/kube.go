// Package kube finds the API server and makes clients for it.
package kube

import (
	"fmt"

	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// NewClient returns a client for core/v1. An empty kubeconfig means the pod's service account.
func NewClient(kubeconfig, userAgent string) (rest.Interface, error) {
	config, err := LoadConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return ClientFor(config, userAgent)
}

// ClientFor is NewClient where the API server is known already. It completes
// config.
func ClientFor(config *rest.Config, userAgent string) (rest.Interface, error) {
	config.UserAgent = userAgent
	if config.QPS == 0 {
		// client-go's 5 a second is less than the containers that a node can
		// start, and each has its pod read once for each resource.
		config.QPS, config.Burst = 50, 200
	}
	client, err := typed.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return client.RESTClient(), nil
}

// LoadConfig finds the API server: by a kubeconfig, or, if that is empty, by the
// pod's service account.
func LoadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no --kubeconfig, and the pod's service account is not usable: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
