package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
)

const (
	devicePlugin = "heddle-device-plugin"
	// portKey is the pod annotation with the port of the metrics address.
	portKey     = "prometheus.io/port"
	defaultPort = "9102"
	// reportTimeout bounds what an answer of the device plugin is worth.
	reportTimeout = 5 * time.Second
)

// Report is what the device plugin of a Node tells of itself, by way of the API
// server. It takes the right to get pods/proxy.
func Report(ctx context.Context, client rest.Interface, node string) (*report.Report, error) {
	pods, err := Pods(ctx, client, node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for i := range pods {
		p := &pods[i]
		if p.Labels[AppLabel] != devicePlugin {
			continue
		}
		port := p.Annotations[portKey]
		if port == "" {
			port = defaultPort
		}
		body, err := client.Get().Namespace(p.Namespace).Resource("pods").Name(p.Name + ":" + port).
			SubResource("proxy").Suffix(report.Path).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("ask pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		var answer report.Report
		if err := json.Unmarshal(body, &answer); err != nil {
			return nil, fmt.Errorf("the answer of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if answer.Node != node {
			return nil, fmt.Errorf("pod %s/%s tells of node %q", p.Namespace, p.Name, answer.Node)
		}
		return &answer, nil
	}
	return nil, errors.New(devicePlugin + " has no pod there")
}
