// Package status is `heddle status`: whether every daemon of an installation runs on
// every node that it is for. It asks the API server and decides nothing about machines.
package status

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// versionLabel is the label with the version of the chart's programs.
const versionLabel = "app.kubernetes.io/version"

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

// Read returns the daemons in a namespace.
func Read(ctx context.Context, client rest.Interface, namespace, selector string) (all []Daemon, err error) {
	var sets appsv1.DaemonSetList
	if err := list(ctx, client, namespace, "daemonsets", selector, &sets); err != nil {
		return nil, err
	}
	for i := range sets.Items {
		s := &sets.Items[i]
		d := Daemon{
			Name: s.Name, Kind: "DaemonSet", Version: s.Labels[versionLabel], Created: s.CreationTimestamp,
			Wanted: s.Status.DesiredNumberScheduled, Ready: s.Status.NumberReady,
		}
		if s.Status.ObservedGeneration >= s.Generation {
			d.Updated = s.Status.UpdatedNumberScheduled
		}
		all = append(all, d)
	}
	var deployments appsv1.DeploymentList
	if err := list(ctx, client, namespace, "deployments", selector, &deployments); err != nil {
		return nil, err
	}
	for i := range deployments.Items {
		s := &deployments.Items[i]
		d := Daemon{
			Name: s.Name, Kind: "Deployment", Version: s.Labels[versionLabel], Created: s.CreationTimestamp,
			Wanted: s.Status.Replicas, Ready: s.Status.ReadyReplicas,
		}
		if s.Spec.Replicas != nil {
			d.Wanted = *s.Spec.Replicas
		}
		if s.Status.ObservedGeneration >= s.Generation {
			d.Updated = s.Status.UpdatedReplicas
		}
		all = append(all, d)
	}
	return all, nil
}

func list(ctx context.Context, client rest.Interface, namespace, plural, selector string, into any) error {
	path := "/apis/apps/v1/namespaces/" + namespace + "/" + plural
	_, err := cluster.ReadPath(ctx, client, path, strings.Trim("app.kubernetes.io/part-of=heddle,"+selector, ","), into)
	return err
}
