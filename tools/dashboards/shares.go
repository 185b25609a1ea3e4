package main

// shares is who has how much of the shared GPUs, and who waits for a part.
func shares() dashboard {
	const pods = `{node=~"$node", namespace=~"$namespace"}`
	return dashboard{
		name: "shares", title: "heddle / Shares",
		description: "Shared GPUs: which containers have which part, what they use of it, and which pods wait. " +
			"Prometheus gets what names pods with a token only: docs/security.md.",
		variables: []variable{{"node", "heddle_resource_registered"}, {"namespace", "heddle_share_info"}},
		panels: []panel{
			number("Shares", "short",
				"Parts of GPUs that containers have; one container may have parts of several GPUs. 0 where "+
					"Prometheus sends no token: docs/security.md.",
				`count(heddle_share_info`+pods+`)`).or("0"),
			number("Shared GPUs in use", "short",
				"GPUs that containers share.",
				`count(count by (node, gpu) (heddle_share_info`+pods+`))`).or("0"),
			number("Memory given", "bytes",
				"Memory of shared GPUs that containers have.",
				`sum(heddle_share_memory_bytes`+pods+`)`).or("0"),
			number("Shares without limits", "short",
				"Shares that nothing limits in memory. See docs/enforcers.md.",
				`count(heddle_share_info{node=~"$node", namespace=~"$namespace", enforcer_memory=""})`).or("0"),
			number("Pods that wait", "short",
				"Pods on a node that do not get their share, or their HCAs. See the alert HeddlePodsRejected.",
				`sum(heddle_rejected_pods{node=~"$node"})`).or("none"),
			number("Usage is measured", "bool_yes_no",
				"Whether every node looks at what containers use of its shared GPUs.",
				`min(heddle_share_usage_measured{node=~"$node"})`).or("no shared GPU"),
			lines("Memory by namespace", "bytes",
				"Memory of shared GPUs that the containers of a namespace have.",
				query{`sum by (namespace) (heddle_share_memory_bytes` + pods + `)`, "{{namespace}}"}).or("no share"),
			lines("Compute by namespace", "percent",
				"Compute of shared GPUs that the containers of a namespace have; 100 is one GPU.",
				query{`sum by (namespace) (heddle_share_vcore_percent` + pods + `)`, "{{namespace}}"}).or("no share"),
			lines("Fullest GPUs", "percent",
				"Compute given of each shared GPU, the ten with most.",
				query{`topk(10, sum by (node, gpu) (heddle_share_vcore_percent{node=~"$node"}))`, "{{node}} {{gpu}}"}).or("no share"),
			lines("Memory used of memory given", "percentunit",
				"Of each container, the ten with most. Absent where usage is not measured.",
				query{
					`topk(10, heddle_share_memory_used_bytes` + pods +
						` / on (node, namespace, pod, container, gpu) heddle_share_memory_bytes)`,
					"{{namespace}}/{{pod}}/{{container}}",
				}).or("not measured"),
			lines("Compute used", "percent",
				"Percent of the time that kernels of a container ran, the ten with most. Absent where usage is not measured.",
				query{`topk(10, heddle_share_sm_used_percent` + pods + `)`, "{{namespace}}/{{pod}}/{{container}}"}).or("not measured"),
			lines("Pods that wait, by reason", "short",
				"Pods on a node that do not get their share, or their HCAs, by kind of reason.",
				query{`sum by (node, kind) (heddle_rejected_pods{node=~"$node"})`, "{{node}}: {{kind}}"}).or("none"),
			lines("Evictions and differences", "short",
				"Per hour: pods evicted after they waited too long, and differences between containers and the checkpoint.",
				query{`sum(increase(heddle_evicted_pods_total{node=~"$node"}[1h]))`, "evicted"},
				query{`sum by (kind) (increase(heddle_share_drift_total{node=~"$node"}[1h]))`, "differs: {{kind}}"}),
			lines("MPS daemons", "bool_yes_no",
				"Whether the MPS daemon of a shared GPU answers. See the alert HeddleMPSDown.",
				query{`min by (node, gpu) (heddle_mps_daemon_running{node=~"$node"})`, "{{node}} {{gpu}}"}).or("no MPS"),
			lines("Ignored annotations", "short",
				"Annotations per hour that give other shares than the limits of their pod, by key.",
				query{`sum by (annotation) (increase(heddle_scheduler_share_annotations_ignored_total[1h]))`, "{{annotation}}"}).or("none"),
			rows("Containers", "short",
				"Every share: its GPU, its policy, who chose the GPU, and what makes the limits hold.",
				`max by (node, namespace, pod, container, gpu, policy, by, enforcer_memory, enforcer_compute) `+
					`(heddle_share_info`+pods+`)`).or("no share"),
			rows("Memory of containers", "bytes",
				"Memory that every container has of its GPU.",
				`max by (node, namespace, pod, container, gpu) (heddle_share_memory_bytes`+pods+`)`).or("no share"),
		},
	}
}
