// Package status is `heddle status`: whether every daemon of an installation runs on
// every node that it is for. It asks the API server and decides nothing about machines.
package status

import (
	"fmt"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// Daemon describes a program of heddle in the cluster.
type Daemon struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Wanted is the desired number of pods, Updated the number of the newest version, Ready the
	// number of ready pods.
	Wanted  int32 `json:"wanted"`
	Updated int32 `json:"updated"`
	Ready   int32 `json:"ready"`
}

// NewCommand makes `heddle status`.
func NewCommand() *cobra.Command {
	var at cluster.Flags
	c := &cobra.Command{
		Use: "status", Short: "Show whether heddle's daemons run", Args: cobra.NoArgs,
		Long: `Show whether heddle's daemons run: how many pods each should have, and how many are
of the newest version and ready. Exit code 1 if one lacks some. helm test runs it.`,
	}
	at.Register(c)
	namespace := c.Flags().StringP("namespace", "n", "heddle-system", "`namespace` of heddle's daemons")
	out := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := at.Client()
		if err != nil {
			return err
		}
		daemons, err := read(c, client, *namespace)
		if err != nil {
			return err
		}
		if len(daemons) == 0 {
			return fmt.Errorf("namespace %s has no daemon of heddle: --namespace names another", *namespace)
		}
		rows, ill := [][]string{{"DAEMON", "KIND", "WANTED", "UPDATED", "READY"}}, 0
		for i := range daemons {
			d := &daemons[i]
			rows = append(rows, []string{d.Name, d.Kind, fmt.Sprint(d.Wanted), fmt.Sprint(d.Updated), fmt.Sprint(d.Ready)})
			if d.Updated != d.Wanted || d.Ready < d.Wanted {
				ill++
			}
		}
		return out.PrintFindings(c, daemons, cli.Table(rows), ill)
	}
	return c
}

func read(c *cobra.Command, client rest.Interface, namespace string) (all []Daemon, err error) {
	var sets appsv1.DaemonSetList
	if err := list(c, client, namespace, "daemonsets", &sets); err != nil {
		return nil, err
	}
	for i := range sets.Items {
		s := &sets.Items[i]
		d := Daemon{Name: s.Name, Kind: "DaemonSet", Wanted: s.Status.DesiredNumberScheduled, Ready: s.Status.NumberReady}
		if s.Status.ObservedGeneration >= s.Generation {
			d.Updated = s.Status.UpdatedNumberScheduled
		}
		all = append(all, d)
	}
	var deployments appsv1.DeploymentList
	if err := list(c, client, namespace, "deployments", &deployments); err != nil {
		return nil, err
	}
	for i := range deployments.Items {
		s := &deployments.Items[i]
		d := Daemon{Name: s.Name, Kind: "Deployment", Wanted: s.Status.Replicas, Ready: s.Status.ReadyReplicas}
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

func list(c *cobra.Command, client rest.Interface, namespace, plural string, into any) error {
	path := "/apis/apps/v1/namespaces/" + namespace + "/" + plural
	_, err := cluster.ReadPath(c.Context(), client, path, "app.kubernetes.io/part-of=heddle", into)
	return err
}
