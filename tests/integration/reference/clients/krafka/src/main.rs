//! Two-phase commit by krafka: `prepare BOOTSTRAP TOPIC ID`, then `complete BOOTSTRAP TOPIC ID STATE`.

use krafka::producer::PreparedTxnState;
use krafka::{Kafka, Record};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let kafka = Kafka::builder(words[1].clone()).connect().await?;
    let producer = kafka
        .producer()
        .two_phase_commit(true)
        .build_transactional(words[3].clone())
        .await?;
    if words[0] == "prepare" {
        producer.begin()?;
        for value in ["1", "2", "3"] {
            let _ = producer.send(Record::new(words[2].as_str(), value.as_bytes().to_vec())).await?;
        }
        println!("{}", producer.prepare().await?);
        // As if it were killed: nothing is closed.
        std::process::exit(0);
    }
    println!("{:?}", producer.prepared_transaction().map(|found| found.to_string()));
    let stored: PreparedTxnState = words[4].parse()?;
    println!("{:?}", producer.complete(stored).await?);
    Ok(())
}
