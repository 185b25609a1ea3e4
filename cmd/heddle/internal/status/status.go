// Package status is `heddle status`: whether every daemon of an installation runs on
// every node that it is for. It asks the API server and decides nothing about machines.
package status

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// Daemon describes a program of heddle in the cluster.
type Daemon struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Version is the version of heddle that the chart installed.
	Version string `json:"version,omitempty"`
	// Wanted is the desired number of pods, Updated the number of the newest version, Ready the
	// number of ready pods.
	Wanted  int32 `json:"wanted"`
	Updated int32 `json:"updated"`
	Ready   int32 `json:"ready"`
	// Created is when it was installed.
	Created metav1.Time `json:"created"`
}

// NewCommand makes `heddle status`.
func NewCommand() *cobra.Command {
	var at cluster.Flags
	c := &cobra.Command{
		Use: "status", Short: "Show whether heddle's daemons run", Args: cobra.NoArgs,
		Long: `Show whether heddle's daemons run: how many pods each should have, and how many
are of the newest version and ready. Exit code 1 if one lacks some. helm test
runs it.`,
	}
	at.Register(c)
	selector := c.Flags().StringP("selector", "l", "", "label `selector` of the daemons")
	out := cli.AddOutput(c, cli.FormatName)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := at.Client()
		if err != nil {
			return err
		}
		namespace := at.Given(cluster.System)
		daemons, err := Read(c.Context(), client, namespace, *selector)
		if err != nil {
			return err
		}
		if len(daemons) == 0 {
			return fmt.Errorf("namespace %s has no daemon of heddle: --namespace names another", namespace)
		}
		out.Names = nil
		rows, ill := [][]string{{"DAEMON", "KIND", "WANTED", "UPDATED", "READY", "AGE"}}, 0
		for i := range daemons {
			d := &daemons[i]
			out.Names = append(out.Names, strings.ToLower(d.Kind)+".apps/"+d.Name)
			rows = append(rows, []string{
				d.Name, d.Kind, fmt.Sprint(d.Wanted), fmt.Sprint(d.Updated), fmt.Sprint(d.Ready),
				cli.Age(d.Created.Time),
			})
			if d.Updated != d.Wanted || d.Ready < d.Wanted {
				ill++
			}
		}
		return out.PrintFindings(c, daemons, cli.Table(rows), ill)
	}
	out.AddWatch(c)
	return c
}

// workloads is a list of DaemonSets or Deployments, with the fields of either.
type workloads struct {
	Items []struct {
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			Replicas int32 `json:"replicas"`
		} `json:"spec"`
		Status struct {
			ObservedGeneration int64 `json:"observedGeneration"`
			Desired            int32 `json:"desiredNumberScheduled"`
			UpdatedScheduled   int32 `json:"updatedNumberScheduled"`
			NumberReady        int32 `json:"numberReady"`
			UpdatedReplicas    int32 `json:"updatedReplicas"`
			ReadyReplicas      int32 `json:"readyReplicas"`
		} `json:"status"`
	} `json:"items"`
}

// Read returns the daemons in a namespace.
func Read(ctx context.Context, client rest.Interface, namespace, selector string) (all []Daemon, err error) {
	selector = strings.Trim("app.kubernetes.io/part-of=heddle,"+selector, ",")
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		var list workloads
		path := "/apis/apps/v1/namespaces/" + namespace + "/" + strings.ToLower(kind) + "s"
		if _, err := cluster.ReadPath(ctx, client, path, selector, &list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			w := &list.Items[i]
			d := Daemon{
				Name: w.Name, Kind: kind, Version: w.Labels["app.kubernetes.io/version"], Created: w.CreationTimestamp,
				Wanted: w.Status.Desired + w.Spec.Replicas, Ready: w.Status.NumberReady + w.Status.ReadyReplicas,
			}
			if w.Status.ObservedGeneration >= w.Generation {
				d.Updated = w.Status.UpdatedScheduled + w.Status.UpdatedReplicas
			}
			all = append(all, d)
		}
	}
	return all, nil
}
